"""The work of an operator as a GPU would do it: matrix products with their extents, attention, and for the others the
bytes that they read and write."""
import dataclasses

from fsdp_plan.errors import PlanError
from fsdp_plan.needs_torch import torch
from fsdp_plan.tracing.extents import per_sequence, plus, scaled

aten = torch.ops.aten


@dataclasses.dataclass
class Work:
    bytes: list = dataclasses.field(default_factory=lambda: [0, 0])   # as extents.scaled
    launches: int = 0
    products: list = dataclasses.field(default_factory=list)     # [rows, columns, contracted, how many]
    attention: dict | None = None
    inside: list = dataclasses.field(default_factory=list)       # bytes of temporaries, all there at once
    kind: str = ""
    shape: dict = dataclasses.field(default_factory=dict)
    unknown: str = ""                                            # an operator that is none of PyTorch's own


def sizes(tensors):
    total = [0, 0]
    for t in tensors:
        total = plus(total, scaled(size(t)))
    return total


def size(t):
    """Bytes that are read of a tensor: what it repeats by a stride of none is read once."""
    elements = 1
    for extent, stride in zip(t.shape, t.stride()):
        elements *= 1 if stride == 0 else extent
    return elements * t.element_size()


def product(m, n, k, count=1):
    return [per_sequence(m), per_sequence(n), per_sequence(k), per_sequence(count)]


def of_mm(work, args, kwargs, outputs):
    a, b = args[0], args[1]
    work.products.append(product(a.shape[0], b.shape[1], a.shape[1]))


def of_addmm(work, args, kwargs, outputs):
    of_mm(work, args[1:], kwargs, outputs)


def of_bmm(work, args, kwargs, outputs):
    a, b = args[0], args[1]
    work.products.append(product(a.shape[1], b.shape[2], a.shape[2], a.shape[0]))


def of_baddbmm(work, args, kwargs, outputs):
    of_bmm(work, args[1:], kwargs, outputs)


def of_grouped_mm(work, args, kwargs, outputs):
    """Rows of one expert after the other by its matrix, as evenly as they can be."""
    a, b, out = args[0], args[1], outputs[0]
    experts = next(t.shape[0] for t in (b, a, out) if t.dim() == 3)
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    extents = [per_sequence(e) for e in (m, n, k)]
    shared = 2 if out.dim() == 3 else 0     # rows of all experts: of the weight's gradient they are contracted
    if extents[shared] % experts == 0:
        extents[shared] = -(-extents[shared] // experts) if extents[shared] < 0 else extents[shared] // experts
        work.products.append([*extents, experts])
    else:
        work.products.append([*extents, 1])


def of_convolution(work, args, kwargs, outputs):
    """As a product: outputs by channels, of what a filter covers."""
    x, w = args[0], args[1]
    out, transposed = outputs[0], args[6]
    covered = w[0].numel()
    rows = (x if transposed else out).numel() // (x if transposed else out).shape[1]
    work.products.append(product(rows, w.shape[0], covered))


def of_convolution_backward(work, args, kwargs, outputs):
    gradient, x, w = args[0], args[1], args[2]
    transposed, wanted = args[7], args[10]
    rows = (x if transposed else gradient).numel() // (x if transposed else gradient).shape[1]
    covered = w[0].numel()
    if wanted[0]:
        work.products.append(product(rows, covered, w.shape[0]))
    if wanted[1]:
        work.products.append(product(w.shape[0], covered, rows))


def attention_of(query, key, causal, masked):
    return {"sequences": per_sequence(query.shape[0]), "heads": query.shape[1], "kv_heads": key.shape[1],
            "head_dim": query.shape[3], "queries": query.shape[2], "keys": key.shape[2],
            **({"causal": True} if causal else {}), **({"masked": True} if masked else {})}


def of_flash(work, args, kwargs, outputs):
    query, key = args[0], args[1]
    causal = args[4] if len(args) > 4 else kwargs.get("is_causal", False)
    work.attention, work.kind = attention_of(query, key, causal, False), "attention"


def of_flash_backward(work, args, kwargs, outputs):
    """Beside its results: a number in fp32 per row and head, the gradient of the queries in fp32, and where heads share
    keys the gradients of keys and values for all heads (FlashAttention-2)."""
    gradient, query, key, value = args[:4]
    work.attention = attention_of(query, key, args[11] if len(args) > 11 else kwargs["is_causal"], False)
    rows = query.numel() // query.shape[3]
    work.inside = [4 * rows + 4 * query.numel()]
    if key.shape[1] != query.shape[1]:
        work.inside[0] += (key.numel() // key.shape[1] * query.shape[1]) * 2 * key.element_size()


def of_efficient(work, args, kwargs, outputs):
    work.attention, work.kind = attention_of(args[0], args[1], False, args[3] is not None), "attention"


def of_efficient_backward(work, args, kwargs, outputs):
    gradient, query, key = args[:3]
    work.attention = attention_of(query, key, False, args[4] is not None)
    work.inside = [4 * (query.numel() // query.shape[3]) + 4 * query.numel()]


def of_embedding(work, args, kwargs, outputs):
    weight, out = args[0], outputs[0]
    work.kind, work.shape = "embedding", {"vocab": weight.shape[0], "width": weight.shape[1]}
    work.bytes = sizes([out, out, args[1]])


def of_embedding_backward(work, args, kwargs, outputs):
    work.bytes = sizes([args[0], args[0], args[1], outputs[0]])


def of_layer_norm(work, args, kwargs, outputs):
    width = 1
    for extent in args[1]:
        width *= extent
    work.kind, work.shape = "layer_norm", {"width": width}


SPECIAL = {"mm": of_mm, "addmm": of_addmm, "bmm": of_bmm, "baddbmm": of_baddbmm, "_grouped_mm": of_grouped_mm,
           "convolution": of_convolution, "convolution_backward": of_convolution_backward,
           "_scaled_dot_product_flash_attention": of_flash,
           "_scaled_dot_product_flash_attention_backward": of_flash_backward,
           "_scaled_dot_product_efficient_attention": of_efficient,
           "_scaled_dot_product_efficient_attention_backward": of_efficient_backward,
           "embedding": of_embedding, "embedding_dense_backward": of_embedding_backward,
           "native_layer_norm": of_layer_norm}
NO_KERNEL = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh")
WITHOUT_READING = ("zeros", "ones", "full", "arange", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like",
                   "full_like", "scalar_tensor", "zero_", "fill_", "bernoulli_", "rand", "randn")


def price(work, by_user, args, kwargs, outputs):
    """What the user says that the operator does: products of the extents (m, n, k)."""
    name = work.unknown
    said = by_user(args, kwargs, outputs)
    for extents in [said] if isinstance(said, tuple) else said or []:
        if len(extents) != 3 or not all(isinstance(e, int) and e > 0 for e in extents):
            raise PlanError(f"prices: {name}: returned {said!r}, and must return (m, n, k), a list of such, or None")
        work.products.append(product(*extents))
    work.unknown = ""


def work_of(func, args, kwargs, inputs, outputs, prices=()):
    namespace, name = func._schema.name.split("::")
    name = name.removesuffix("_default")
    work = Work(launches=0 if name in NO_KERNEL else 1)
    if namespace not in ("aten", "prims", "prim"):
        work.unknown = f"{namespace}::{name}"
        if work.unknown in prices:
            price(work, prices[work.unknown], args, kwargs, outputs)
    if name not in NO_KERNEL:
        work.bytes = sizes([*outputs, *([] if name in WITHOUT_READING else inputs)])
    if special := SPECIAL.get(name):
        special(work, args, kwargs, outputs)
    return work
