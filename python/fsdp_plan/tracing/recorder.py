"""Writes down, in order, what one forward and backward does: operators, storages that appear and go, what autograd
keeps, modules that begin and end.

What autograd keeps is not held here: when Python lets go of a tensor, its storage is seen to go, also where autograd
would have kept it for backward. A tensor that backward asks for is made anew. So one run shows both how long a value
lives by itself, as in a module that is run again, and which operators' backward needs it."""
import contextlib
import dataclasses
import weakref

from fsdp_plan.errors import PlanError
from fsdp_plan.memory import as_engine
from fsdp_plan.needs_torch import torch
from fsdp_plan.tracing import kernels
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NODE_OF_LEAF = 2 ** 63  # autograd's own node for a parameter's gradient has a larger number than any operator's


@dataclasses.dataclass
class Value:
    bytes: int
    dtype: torch.dtype


@dataclasses.dataclass
class Operator:
    name: str
    module: tuple           # indices of modules that run, outermost first
    number: int             # of the autograd node: made by it in forward, run for it in backward
    parameters: list
    reads: list             # values
    is_view: bool
    work: kernels.Work


@dataclasses.dataclass
class Event:
    """what: op, appears, goes, saved, asked, ended (a module), gradient (of a parameter)."""
    what: str
    item: object = None
    number: int = 0         # of the autograd node


@dataclasses.dataclass
class Kept:
    """In place of a tensor that autograd keeps."""
    value: int
    size: tuple
    stride: tuple
    offset: int
    dtype: torch.dtype


class Recorder(TorchDispatchMode):
    def __init__(self, tree, prices=()):
        super().__init__()
        self.prices = prices
        self.tree, self.events, self.values = tree, [], []
        self.value_of, self.parameter_of, self.known = {}, {}, set()     # by storage
        self.running, self.backward_begins, self.quiet, self.made_again = [(0, None)], None, False, {}
        self.called = set()
        self.first_number = torch.autograd._get_sequence_nr()

    # -- what there is before

    def knows(self, tensor):
        self.known.add(tensor.untyped_storage()._cdata)

    def knows_parameter(self, parameter, index):
        self.parameter_of[parameter.untyped_storage()._cdata] = index
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: self.has_gradient(p, index))

    def has_gradient(self, parameter, index):
        value = self.value_of.get(parameter.grad.untyped_storage()._cdata)
        self.events.append(Event("gradient", (index, value)))
        parameter.grad = None

    # -- modules

    def module_begins(self, module, _args):
        if self.backward_begins is not None:
            raise PlanError(f"the model runs {type(module).__name__} again in backward: it checkpoints activations by "
                            "itself. Turn that off: a plan says what is recomputed")
        name = self.tree.called(module, self.running[-1][0])
        self.running.append((name if name >= 0 else self.running[-1][0], module))
        self.called.add(self.running[-1][0])

    def module_ends(self, module, _args, _result):
        name, _ = self.running.pop()
        if name != self.running[-1][0]:
            self.events.append(Event("ended", name))

    # -- storages

    def see(self, tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or tensor.dtype == torch.uint64:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.value_of or key in self.known or key in self.parameter_of or storage.nbytes() == 0:
            return
        self.value_of[key] = len(self.values)
        self.events.append(Event("appears", len(self.values)))
        self.values.append(Value(storage.nbytes(), tensor.dtype))
        weakref.finalize(storage, self.gone, key, self.value_of[key])

    def gone(self, key, value):
        if self.value_of.get(key) == value:
            del self.value_of[key]
            self.events.append(Event("goes", value))

    # -- what autograd keeps

    def pack(self, tensor):
        key = tensor.untyped_storage()._cdata
        number = torch.autograd._get_sequence_nr() - 1
        self.events.append(Event("saved", self.value_of.get(key), number))
        if key not in self.value_of:
            return tensor
        return Kept(self.value_of[key], tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)

    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        self.events.append(Event("asked", kept.value, self.node()))
        with self.aside():
            whole = self.made_again.get(kept.value)
            if whole is None:
                whole = torch.empty(self.values[kept.value].bytes, dtype=torch.uint8)
                self.made_again[kept.value] = whole
                self.knows(whole)
            return torch.as_strided(whole.view(kept.dtype), kept.size, kept.stride, kept.offset)

    @contextlib.contextmanager
    def aside(self):
        self.quiet, before = True, self.quiet
        try:
            with torch.no_grad():
                yield
        finally:
            self.quiet = before

    # -- operators

    def node(self):
        node = torch._C._current_autograd_node()
        return None if node is None else node._sequence_nr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.quiet:
            return func(*args, **kwargs)
        func = as_engine(func, args)
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        keys = [t.untyped_storage()._cdata for t in inputs]
        out = func(*args, **kwargs)
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if outputs:
            backward = self.backward_begins is not None
            number = self.node() if backward else torch.autograd._get_sequence_nr() - 1
            is_view = not func._schema.is_mutable and all(t.untyped_storage()._cdata in keys for t in outputs)
            work = kernels.Work() if is_view else kernels.work_of(func, args, kwargs, inputs, outputs, self.prices)
            self.events.append(Event("op", Operator(
                str(func).removeprefix("aten."), tuple(name for name, _ in self.running), number,
                [self.parameter_of[k] for k in keys if k in self.parameter_of],
                [self.value_of[k] for k in keys if k in self.value_of], is_view, work)))
            for t in outputs:
                self.see(t)
            for size in work.inside:
                self.inside(size)
        return out

    def inside(self, size):
        """What a kernel takes for itself."""
        value = len(self.values)
        self.values.append(Value(size, torch.float32))
        self.events += [Event("appears", value), Event("goes", value)]

    # -- the run

    @contextlib.contextmanager
    def recording(self):
        hooks = [torch.nn.modules.module.register_module_forward_pre_hook(self.module_begins),
                 torch.nn.modules.module.register_module_forward_hook(self.module_ends, always_call=True)]
        try:
            with self, torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def backward(self, loss):
        self.backward_begins = len(self.events)
        loss.backward()
