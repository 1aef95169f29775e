"""The bytes that are alive in device memory while a script trains on the CPU, as a GPU would hold them.

Four things differ between the CPU and a GPU. Each is replaced here by what PyTorch does on a GPU, so that no tolerance
has to hide it:

    attention     F.scaled_dot_product_attention without a mask is the flash kernel (cuDNN's, which holds the same,
                  where values have heads of another size): it takes grouped heads, and keeps q, k, v, the result, in
                  the order in which q lies, and its log-sum-exp (fp32). It is for 16 bits, and in others no fused
                  kernel takes grouped heads: those are multiplied out. _safe_softmax notes which scores are minus
                  infinity, a byte each and one per row
    dropout       is one kernel, which keeps a byte per number
    layer norm    keeps its mean and 1/std in fp32
    random state  a checkpointed module keeps that of the CPU: host memory

Memory that PyTorch's dispatcher does not see (inside flash's and the embedding's backward) is left out on both sides.
So is what the training loop owns: its batches, and each batch's copy of the targets. What the model makes once for all
layers, its table of angles and its positions, is counted apart (`tables`): no implementation has it.
"""
import weakref

import torch
import torch.nn.functional as F
try:
    from torch.distributed.tensor import DTensor
except ImportError:                                      # before PyTorch 2.5
    from torch.distributed._tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograd_engine import as_engine
from fused_dropout import dropout

aten = torch.ops.aten


def flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """What aten::_scaled_dot_product_flash_attention returns. q, k, v: [batch, heads, tokens, head_dim]. Its values do
    not matter: zeros."""
    statistics, none, number = q.new_empty(q.shape[:3], dtype=torch.float32), torch.Tensor(), torch.tensor(0)
    return zeros_as(q, v.shape[-1]), statistics, none, none, q.shape[2], k.shape[2], number, number.clone(), none


def flash_backward(gradient, q, k, v, *args, **kwargs):
    return tuple(zeros_as(x, x.shape[-1]) for x in (q, k, v))


def zeros_as(x, width):
    """In memory [batch, tokens, heads, width], but of 16 bits in the order in which x lies."""
    batch, heads, tokens, _ = x.shape
    if x.element_size() == 2 and x.stride(1) > x.stride(2):
        return x.new_zeros(batch, heads, tokens, width)
    return x.new_zeros(batch, tokens, heads, width).transpose(1, 2)


FLASH = torch.library.Library("aten", "IMPL")  # processors have no such kernel
FLASH.impl("_scaled_dot_product_flash_attention", flash, "CPU")
FLASH.impl("_scaled_dot_product_flash_attention_backward", flash_backward, "CPU")
plain_attention, plain_dropout = F.scaled_dot_product_attention, F.dropout


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if attn_mask is not None or dropout_p or not is_causal:
        raise NotImplementedError("attention with a mask leaves the flash kernel")
    if query.element_size() > 2 and key.shape[1] != query.shape[1]:
        return aten._scaled_dot_product_attention_math(query, key, value, None, 0.0, True, None, scale=scale,
                                                       enable_gqa=True)[0]
    return aten._scaled_dot_product_flash_attention(query, key, value, is_causal=True)[0]


class MemoryLog(TorchDispatchMode):
    """Bytes of the storages that are alive; numbers alone (losses, counts of steps) left out.

    left_out: storages that are not counted. With `explain`, `names` says which operator and module made each."""

    def __init__(self, explain=False):
        super().__init__()
        self.alive, self.total, self.peak, self.explain = {}, 0, 0, explain
        self.names, self.at_peak, self.left_out, self.modules, self.before = {}, {}, set(), [], set()
        self.tables = self.largest_tables = 0

    def __enter__(self):
        log, self.resize = self, torch.UntypedStorage.resize_

        def resized(storage, size):
            log.resize(storage, size)
            log.see(storage, "resize_")
            log.note_peak()
        torch.UntypedStorage.resize_ = resized
        F.scaled_dot_product_attention, F.dropout = attention, dropout
        return super().__enter__()

    def __exit__(self, *args):
        torch.UntypedStorage.resize_ = self.resize
        F.scaled_dot_product_attention, F.dropout = plain_attention, plain_dropout
        return super().__exit__(*args)

    def leave_out(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.left_out:
            self.left_out.add(storage._cdata)
            weakref.finalize(storage, self.left_out.discard, storage._cdata)
            self.total -= self.alive.pop(storage._cdata, 0)

    def is_table(self, tensor):
        """Made in a module of angles, or positions and masks (also as numbers, [B, 1, T, T]) that the trunk makes."""
        module = self.modules[-1] if self.modules else ""
        mask = tensor.dim() == 4 and tensor.shape[1] == 1 and tensor.shape[2] == tensor.shape[3]
        return module.endswith("rotary_emb") or module in ("model", "transformer") and (
            mask or tensor.dtype in (torch.int64, torch.bool))

    def see_table(self, storage):
        if storage._cdata not in self.left_out:
            self.left_out.add(storage._cdata)
            size = storage.nbytes()
            self.tables += size
            self.largest_tables = max(self.largest_tables, self.tables)
            weakref.finalize(storage, self.table_gone, storage._cdata, size)

    def table_gone(self, key, size):
        self.left_out.discard(key)
        self.tables -= size

    def see(self, storage, name):
        key = storage._cdata
        if key in self.left_out:
            return
        if key not in self.alive:
            self.alive[key] = 0
            weakref.finalize(storage, self.gone, key)
            if self.explain:
                self.names[key] = name
        self.total += storage.nbytes() - self.alive[key]
        self.alive[key] = storage.nbytes()

    def gone(self, key):
        self.total -= self.alive.pop(key, 0)
        self.names.pop(key, None)
        self.before.discard(key)

    def note_peak(self, beside=0):
        if self.total + beside > self.peak:
            self.peak = self.total + beside
            if self.explain:
                self.at_peak = self.snapshot()

    def begin_step(self):
        self.peak, self.before = 0, {key for key, size in self.alive.items() if size}
        self.note_peak()

    def snapshot(self):
        """[(bytes, name)] of what is alive; what was there when the step began is one row."""
        rows = [(size, self.names.get(key, "?")) for key, size in self.alive.items() if size and key not in self.before]
        return rows + [(sum(size for key, size in self.alive.items() if key in self.before), "kept")]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented            # DTensor asks again with its local tensors
        func = as_engine(func, args)
        out = on_gpu(func, args, kwargs or {})
        name = str(func).removeprefix("aten.").removesuffix(".default") if self.explain else ""
        for t in tree_leaves(out):
            if not isinstance(t, torch.Tensor) or t.dim() == 0 or t.device.type != "cpu" or is_fake(t):
                continue
            if func is aten.clone.default and args[0].untyped_storage()._cdata in self.left_out:
                self.leave_out(t)            # the targets, made contiguous
                continue
            if self.is_table(t):
                self.see_table(t.untyped_storage())
                continue
            where = f"{name} {list(t.shape)} {str(t.dtype)[6:]} {' '.join(self.modules[-1:])}" if self.explain else ""
            self.see(t.untyped_storage(), where)
        self.note_peak(out.numel() + out.numel() // out.shape[-1] if func is aten._safe_softmax.default else 0)
        return out


def on_gpu(func, args, kwargs):
    """The operator's result as a GPU returns it."""
    if func is aten.native_layer_norm.default:
        out, mean, rstd = func(*args, **kwargs)
        return out, mean.float(), rstd.float()
    if func is aten.native_layer_norm_backward.default:
        gradient, x, shape, mean, rstd, *rest = args
        return func(gradient, x, shape, mean.to(x.dtype), rstd.to(x.dtype), *rest, **kwargs)
    return func(*args, **kwargs)


def is_fake(tensor):
    return isinstance(tensor, torch._subclasses.FakeTensor)
