"""Optimizer states that wait in (pinned) host memory from step to step: a plan's offload_optimizer."""
from fsdp_plan.needs_torch import torch
from torch.distributed.tensor import DTensor


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def holding(state, tensor):
    """The state, with `tensor` as what this rank holds of it."""
    return DTensor(tensor, state._spec, requires_grad=False) if isinstance(state, DTensor) else tensor


def growing(optimizer):
    """(parameter, its states, key) of every state that is as large as its parameter; not of the counts of steps."""
    for parameter, states in optimizer.state.items():
        for key, state in states.items():
            if torch.is_tensor(state) and state.dim() > 0 and state.shape == parameter.shape:
                yield parameter, states, key


class HostStates:
    """Steps an optimizer whose states are on the device for that alone. Between steps they can be read, and saved, as
    they are: step() returns when they are in host memory."""

    def __init__(self):
        self.places = {}      # what of pinned memory a state has, by its parameter and key

    def step(self, optimizer):
        for parameter, states, key in growing(optimizer):
            self.places[id(parameter), key] = place = local(states[key])
            states[key] = holding(states[key], place.to(local(parameter).device, non_blocking=True))
        optimizer.step()
        for parameter, states, key in growing(optimizer):
            state = local(states[key])
            place = self.places.get((id(parameter), key))
            if place is None or place is state or place.device.type != "cpu":
                place = torch.empty_like(state, device="cpu", pin_memory=state.is_cuda)
                self.places[id(parameter), key] = place
            states[key] = holding(states[key], place.copy_(state, non_blocking=True))
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
