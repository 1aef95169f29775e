"""What autograd's engine does, for modes that see operators in its place."""
import sys

import torch


def as_engine(func, args, inherited=False):
    """The operator that runs without a dispatch mode, to be asked for in __torch_dispatch__. The engine adds gradients
    that meet at one tensor in place when nobody else holds the first; under a dispatch mode it does not. A gradient
    that came through a view (of a linear layer's weight, or of its input of more than two dimensions) shares its
    storage with what it is a view of, so that a third tensor is made. Profiler: aten::add_ against aten::add.
    inherited: a derived class's method stands between the mode's own and its caller."""
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:
        return func
    frame = sys._getframe(2)
    names = ("_fn", "inner") + (("__torch_dispatch__",) if inherited else ())   # PyTorch wraps __torch_dispatch__
    while frame.f_code.co_name in names:
        frame = frame.f_back
    in_engine = frame.f_code.co_name == "_engine_run_backward"
    return torch.ops.aten.add_.Tensor if in_engine and not args[0]._is_view() else func
