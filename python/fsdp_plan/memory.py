"""Bytes allocated on a device: of a GPU as its allocator counts them, of processors as the sum of living storages."""
import contextlib
import sys
import time
import weakref

from fsdp_plan.needs_torch import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


SETTLES = 0.002  # seconds in which gloo's threads let go of what a collective that has ended worked on


class UnseenMemory:
    """Where nothing is counted."""
    is_seen = False
    library_bytes = 0

    def begin(self, tensors):
        pass

    def now(self):
        return 0

    def peak(self):
        return 0

    def left_out(self):
        return contextlib.nullcontext()

    def end(self):
        pass


class GpuMemory:
    """The caching allocator's numbers; they are the host's, so that they need no synchronisation. library_bytes, known
    after end(): cuBLAS's workspaces, one for each thread that multiplies (forward's and autograd's), which the
    allocator counts as allocated and which are no tensors of the step."""
    is_seen = True

    def __init__(self, device):
        self.device, self.library_bytes = device, 0

    def begin(self, tensors):
        torch.cuda.reset_peak_memory_stats(self.device)

    def now(self):
        return torch.cuda.memory_allocated(self.device)

    def peak(self):
        return torch.cuda.max_memory_allocated(self.device)

    def left_out(self):
        return contextlib.nullcontext()

    def end(self):
        """cuBLAS takes them again with its next product: the same bytes, from the allocator's cache."""
        before = torch.cuda.memory_allocated(self.device)
        torch._C._cuda_clearCublasWorkspaces()
        self.library_bytes = before - torch.cuda.memory_allocated(self.device)


class StorageMemory(TorchDispatchMode):
    """Storages on processors, from begin() to end(): those of the tensors that are named there, and those that
    operators make. Numbers alone (losses, counts of steps) are left out."""
    is_seen = True
    library_bytes = 0

    def __init__(self):
        super().__init__()
        self.alive, self.total, self.most, self.resize = {}, 0, 0, None
        self.counts = True

    def begin(self, tensors):
        for tensor in tensors:
            for part in parts_of(tensor):
                self.see(part)
        self.most, self.resize = self.total, torch.UntypedStorage.resize_
        log, resize = self, self.resize

        def resized(storage, size):
            result = resize(storage, size)
            log.count(storage)
            return result
        torch.UntypedStorage.resize_ = resized
        self.__enter__()

    def end(self):
        self.__exit__(None, None, None)
        torch.UntypedStorage.resize_ = self.resize

    def now(self):
        return self.total

    @contextlib.contextmanager
    def left_out(self):
        """What gloo takes for itself inside of a collective is no tensor of the step."""
        self.counts = False
        try:
            yield
        finally:
            self.counts = True
            time.sleep(SETTLES)

    def peak(self):
        return self.most

    def see(self, tensor):
        if hasattr(tensor, "__tensor_flatten__"):
            return                           # what it holds was seen when it was made
        if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.device.type == "cpu" and not isinstance(
                tensor, torch._subclasses.FakeTensor):
            self.count(tensor.untyped_storage())

    def count(self, storage):
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = 0
            weakref.finalize(storage, self.gone, key)
        self.total += storage.nbytes() - self.alive[key]
        self.alive[key] = storage.nbytes()
        self.most = max(self.most, self.total)

    def gone(self, key):
        self.total -= self.alive.pop(key, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented            # DTensor and its like ask again with the tensors that they hold
        out = as_engine(func, args)(*args, **(kwargs or {}))
        for tensor in tree_leaves(out) if self.counts else ():
            self.see(tensor)
        return out


def parts_of(tensor):
    """Those that it holds, where it is a DTensor, a state in 8 bits or their like; or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in parts_of(getattr(tensor, name))]


def as_engine(func, args):
    """The operator that runs when no mode looks on: autograd's engine then adds gradients that meet at a tensor in
    place when nobody else holds the first, but for one that is a view. Under a dispatch mode it never does."""
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:
        return func
    frame = sys._getframe(2)
    while frame.f_code.co_name in ("_fn", "inner"):   # PyTorch wraps __torch_dispatch__
        frame = frame.f_back
    in_engine = frame.f_code.co_name == "_engine_run_backward"
    return torch.ops.aten.add_.Tensor if in_engine and not args[0]._is_view() else func


def of_device(device, offload):
    """device: the one that computes. On processors offloaded shards are in the same memory as what computes, so that
    no count of storages is the device's."""
    if device.type == "cuda":
        return GpuMemory(device)
    return UnseenMemory() if offload else StorageMemory()


def kept_tensors(model, optimizers):
    """What lives from step to step: shards, sharded gradients, states of optimizers."""
    for p in model.parameters():
        yield p.detach()
        if p.grad is not None:
            yield p.grad
    for optimizer in optimizers:
        yield from tree_leaves(list(optimizer.state.values()))
