"""The tree of modules, each by every name it has, and its parameters, each storage once."""
import dataclasses

from fsdp_plan.needs_torch import torch

LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclasses.dataclass
class Parameter:
    name: str
    shape: list
    aliases: list
    trained: bool
    bytes: int


class Tree:
    def __init__(self, model):
        self.names, self.classes, self.parents, self.containers, self.names_of = [], [], [], [], {}
        for name, module in model.named_modules(remove_duplicate=False):
            self.names_of.setdefault(module, []).append(len(self.names))
            self.names.append(name)
            self.classes.append(type(module).__name__)
            self.containers.append(isinstance(module, LISTS))
        index = {name: i for i, name in enumerate(self.names)}
        self.parents = [-1] + [index[name.rpartition(".")[0]] for name in self.names[1:]]
        self.children_end = self.ends()
        self.parameters, self.index_of = [], {}
        for name, p in model.named_parameters(remove_duplicate=False):
            if p in self.index_of:
                self.parameters[self.index_of[p]].aliases.append(name)
                continue
            self.index_of[p] = len(self.parameters)
            shape = list(p.shape) or [1]
            self.parameters.append(Parameter(name, shape, [], p.requires_grad, p.numel() * p.element_size()))

    def ends(self):
        """Modules are in pre-order: module i and all below it are [i, ends[i])."""
        ends = list(range(1, len(self.names) + 1))
        for i in range(len(self.names) - 1, 0, -1):
            ends[self.parents[i]] = max(ends[self.parents[i]], ends[i])
        return ends

    def holds(self, outer, inner):
        return outer <= inner < self.children_end[outer]

    def called(self, module, caller):
        """The module's name where `caller` called it: one below the caller. kNone: it has none there."""
        found = self.names_of.get(module, ())
        return next((i for i in found if self.holds(caller, i)), -1)

    def above(self, i):
        while i >= 0:
            yield i
            i = self.parents[i]

    def blocks(self, called):
        """The outermost modules that stand in a list of several of one class, and run."""
        found = set()
        for i, parent in enumerate(self.parents):
            if parent < 0 or not self.containers[parent] or i not in called:
                continue
            if any(above in found for above in self.above(parent)):
                continue
            alike = [j for j in range(parent + 1, self.children_end[parent])
                     if self.parents[j] == parent and self.classes[j] == self.classes[i]]
            if len(alike) > 1:
                found.add(i)
        return found
