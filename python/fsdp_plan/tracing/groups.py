"""Operators in groups, the ops of model.json: a matrix product, attention or a lookup with the views around it is one,
and so is what stands between in one module. With each: what appears and goes in its forward and in its backward."""
import bisect
import dataclasses

from fsdp_plan.errors import PlanError
from fsdp_plan.tracing.recorder import NODE_OF_LEAF

NORMS = ("RMSNorm", "LayerNorm")


@dataclasses.dataclass
class Group:
    begin: int                      # operators [begin, end) of the forward
    end: int
    module: int                     # -1: the loss
    is_heavy: bool
    forward: list = dataclasses.field(default_factory=list)    # of backward: (what, value, modules that have ended)
    backward: list = dataclasses.field(default_factory=list)
    forward_operators: list = dataclasses.field(default_factory=list)
    backward_operators: list = dataclasses.field(default_factory=list)
    reads: list = dataclasses.field(default_factory=list)
    parameters: list = dataclasses.field(default_factory=list)
    gradients: list = dataclasses.field(default_factory=list)
    is_differentiable: bool = False                            # autograd made a node of its own for some of it
    kept_until: int = -1            # entries of `forward` before the last thing that autograd keeps; -1: nothing


def is_heavy(operator):
    return bool(operator.work.products or operator.work.attention or operator.work.kind == "embedding")


def forward_groups(operators):
    """Of the forward's operators, in order."""
    last_of_child = max((i for i, o in enumerate(operators) if o.module[-1] != 0), default=-1)
    loss = last_of_child + 1
    if not any(not o.is_view for o in operators[loss:]):
        loss = max(i for i, o in enumerate(operators) if not o.is_view)
    groups, views = [], 0           # views: at the end of the last group
    for i, operator in enumerate(operators):
        module, heavy = (-1 if i >= loss else operator.module[-1]), i < loss and is_heavy(operator)
        last = groups[-1] if groups else None
        fits = last is not None and last.module == module and not heavy and (operator.is_view or not last.is_heavy)
        if fits:
            last.end = i + 1
            views = views + 1 if operator.is_view else 0
            continue
        begin = i
        if heavy and last is not None and views and last.module == module and last.end - last.begin > views:
            begin, last.end = i - views, i - views
        elif heavy and last is not None and last.module == module and last.end - last.begin == views:
            groups.pop()
            begin = last.begin
        groups.append(Group(begin, i + 1, module, heavy))
        views = 1 if operator.is_view else 0
    return groups


def settle_modules(groups, tree):
    """Ops of a module must stand together. What of a module runs again after others counts as its caller's."""
    again = set()
    while True:
        first, last, count = {}, {}, {}
        for i, group in enumerate(groups):
            for m in tree.above(group.module):
                first.setdefault(m, i)
                last[m], count[m] = i, count.get(m, 0) + 1
        apart = [m for m in count if last[m] - first[m] + 1 != count[m] and not tree.containers[m]]
        if not apart:
            return again
        deepest = max(apart)
        again.add(deepest)
        for group in groups:
            if group.module == deepest:
                group.module = tree.parents[deepest]
            elif group.module > deepest and tree.holds(deepest, group.module):
                group.module = tree.parents[deepest]


class Sorter:
    """Gives every event of the recording to a group."""

    def __init__(self, run):
        self.run, self.recorder = run, run.recorder
        events = self.recorder.events
        self.first = events[:self.recorder.backward_begins]
        self.second = events[self.recorder.backward_begins:]
        self.operators = [e.item for e in self.first if e.what == "op"]
        self.groups = forward_groups(self.operators)
        self.again = settle_modules(self.groups, run.tree)
        self.numbers = [o.number for o in self.operators]
        self.group_of = [g for g, group in enumerate(self.groups) for _ in range(group.begin, group.end)]
        self.made_in = {}           # by value: (is backward, group)
        before = [self.recorder.first_number - 1, *self.numbers]
        for i, number in enumerate(self.numbers):
            self.groups[self.group_of[i]].is_differentiable |= number > before[i]
        self.sort_backward()
        self.sort_forward()

    def group_of_node(self, number):
        return self.group_of[min(bisect.bisect_left(self.numbers, number), len(self.group_of) - 1)]

    def sort_forward(self):
        group, at, ended = self.groups[0], -1, 0
        for event in self.first:
            if event.what == "op":
                at += 1
                group, ended = self.groups[self.group_of[at]], 0
                group.forward_operators.append(event.item)
                group.reads += event.item.reads
                group.parameters += event.item.parameters
            elif event.what == "ended":
                ended += event.item in self.run.tree.above(group.module)
            elif event.what == "saved":
                owner = self.groups[self.group_of_node(event.number)]
                if event.number in self.run_again:
                    owner.kept_until = len(owner.forward)
            else:
                group.forward.append((event.what, event.item, ended if event.what == "goes" else 0))
                if event.what == "appears":
                    self.made_in[event.item] = (False, self.group_of[at])

    def sort_backward(self):
        self.run_again = {e.item.number for e in self.second if e.what == "op"} | {
            e.number for e in self.second if e.what == "asked"}
        current, node, asked = len(self.groups) - 1, None, []

        def let_go():
            for value in asked:
                self.groups[current].backward.append(("released", value, 0))
            asked.clear()

        for event in self.second:
            number = event.item.number if event.what == "op" else event.number if event.what == "asked" else node
            if number != node or event.what == "gradient":
                let_go()
                node = number
                if number is not None and number < NODE_OF_LEAF:
                    current = min(current, self.group_of_node(number))
            group = self.groups[current]
            if event.what == "op":
                group.backward_operators.append(event.item)
            elif event.what == "asked":
                asked.append(event.item)
            elif event.what == "gradient":
                group.gradients.append(event.item)
            elif event.what in ("appears", "goes"):
                group.backward.append((event.what, event.item, 0))
                if event.what == "appears":
                    self.made_in[event.item] = (True, current)
        let_go()
        self.leave_out_gradients()
        for group in self.groups:
            group.backward = without_repeats(group.backward)

    def leave_out_gradients(self):
        """Gradients of parameters belong to what shards them. Of a parameter with several uses each makes a part, and
        what is added up of those belongs there, too."""
        sizes, values, out = [p.bytes for p in self.run.tree.parameters], self.recorder.values, set()
        uses = {}                   # by parameter: groups that compute with it
        for g, group in enumerate(self.groups):
            for p in {p for o in self.operators[group.begin:group.end] if not o.is_view for p in o.parameters}:
                uses.setdefault(p, []).append(g)
        made = [set() for _ in self.groups]
        for g, group in enumerate(self.groups):
            for p, value in group.gradients:
                if value is not None and values[value].bytes == sizes[p]:
                    out.add(value)
                using = uses.get(p, [g])
                made[using[0] if len(using) == 1 else g].add(p)
                for part in using if len(using) > 1 else ():
                    parts = self.parts(part, sizes[p], part == g)
                    made[part] |= {p} if parts else set()
                    out.update(parts)
        for g, group in enumerate(self.groups):
            group.gradients = sorted(made[g])
            group.backward = [e for e in group.backward if e[1] not in out]

    def parts(self, g, size, is_last):
        """Values of that size which the group's backward makes and leaves; all of them where they are added up."""
        entries = self.groups[g].backward
        gone = {v for what, v, _ in entries if what == "goes"}
        return [v for what, v, _ in entries
                if what == "appears" and self.recorder.values[v].bytes == size and (is_last or v not in gone)]


def without_repeats(entries):
    """What several operators of a group keep goes with the last of them."""
    seen, kept = set(), []
    for entry in reversed(entries):
        if entry[0] == "released" and entry[1] in seen:
            continue
        seen.add(entry[1]) if entry[0] == "released" else None
        kept.append(entry)
    return kept[::-1]


def sorted_groups(run):
    sorter = Sorter(run)
    if not any(group.backward_operators for group in sorter.groups):
        raise PlanError("the loss has no backward")
    return sorter
