"""What autograd's engine does, for modes that see operators in its place."""
import torch


def as_engine(func):
    """The operator that runs without a dispatch mode: the engine adds gradients that meet at one tensor in place when
    nobody else holds the first; under a dispatch mode it does not."""
    in_engine = torch._C._current_graph_task_id() != -1 and torch._C._current_autograd_node() is None
    return torch.ops.aten.add_.Tensor if in_engine and func is torch.ops.aten.add.Tensor else func
