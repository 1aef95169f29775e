"""model.json from a recorded run: what docs/model-file.md describes. Ops that are alike in all but the module, the
parameters and the values that they name share one description."""
import json

from fsdp_plan.needs_torch import NAMES, torch
from fsdp_plan.tracing.extents import plus, scaled

SCHEMA = "fsdp-plan/model/1"
TYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
         torch.int64: "int64"}


def work_of(operators):
    total = {"bytes": [0, 0], "launches": 0, "products": []}
    for o in operators:
        total["launches"] += o.work.launches
        if o.work.products:
            total["products"] += o.work.products
        elif o.work.attention:
            total["attention"] = {**o.work.attention, "bytes": plus(
                total.get("attention", {}).get("bytes", [0, 0]), o.work.bytes)}
        else:
            total["bytes"] = plus(total["bytes"], o.work.bytes)
    return {k: v for k, v in total.items() if v not in ([], [0, 0], 0)}


class Writer:
    def __init__(self, run, sorter):
        self.run, self.groups, self.tree, self.values = run, sorter.groups, run.tree, run.recorder.values
        self.made_in = sorter.made_in
        self.forward_ids, self.backward_ids = {}, {}
        for group in self.groups:
            for what, value, _ in group.forward:
                if what == "appears":
                    self.forward_ids[value] = len(self.forward_ids)
        for group in reversed(self.groups):
            for what, value, _ in group.backward:
                if what == "appears":
                    self.backward_ids[value] = len(self.backward_ids)
        self.first_kept = self.kept_first_by()
        self.kinds, self.kind_of = [], {}

    def kept_first_by(self):
        first = {}
        for g, group in enumerate(self.groups):
            for what, value, _ in group.backward:
                if value in self.forward_ids:
                    first.setdefault(value, g)
        return first

    def kind(self, group):
        """(name, shape) of what the group is."""
        if group is self.groups[-1]:
            return "cross_entropy", {}
        heavy = [o for o in group.forward_operators if o.work.products or o.work.kind]
        shapes = [self.tree.parameters[p].shape for p in group.parameters]
        if len(heavy) == 1 and heavy[0].work.kind:
            return heavy[0].work.kind, heavy[0].work.shape
        if len(heavy) == 1 and heavy[0].name.split(".")[0] in ("mm", "addmm"):
            _, n, k, _ = heavy[0].work.products[0]
            for shape in shapes:
                if shape in ([n, k], [k, n]) and n > 0 and k > 0:
                    return "linear", {"in": k, "out": n, **({"transposed": True} if shape != [n, k] else {})}
        if len(heavy) == 1 and heavy[0].name.startswith("_grouped_mm") and any(len(shape) == 3 for shape in shapes):
            return "expert_linear", {}
        if self.tree.classes[group.module].endswith("RMSNorm") and len(shapes) > 0 and len(shapes[0]) == 1:
            return "rms_norm", {"width": shapes[0][0]}
        return "opaque", {}

    def size(self, value):
        v = self.values[value]
        return [*scaled(v.bytes), TYPES.get(v.dtype, "other")]

    def op(self, g, group):
        made = [v for what, v, _ in group.forward if what == "appears"]
        made_back = [v for what, v, _ in group.backward if what == "appears"]
        own, own_back = {v: i for i, v in enumerate(made)}, {v: i for i, v in enumerate(made_back)}
        read = [v for v in dict.fromkeys(group.reads) if v not in own and v in self.forward_ids]
        refs, back_refs = {v: i for i, v in enumerate(read)}, {}
        forward = []
        for what, value, ended in group.forward:
            if what == "appears":
                forward += [0, own[value]]
            elif value in own:
                forward += [1 + 2 * ended, own[value]]
            elif value in self.forward_ids:
                forward += [2 + 2 * ended, refs.setdefault(value, len(refs))]
        backward = []
        for what, value, _ in group.backward:
            if what == "appears":
                backward += [0, own_back[value]]
            elif value in own_back:
                backward += [1, own_back[value]]
            elif value in self.backward_ids:
                backward += [2, back_refs.setdefault(value, len(back_refs))]
            elif value in own:
                backward += [3, own[value]]
            elif value in self.forward_ids:
                backward += [4, refs.setdefault(value, len(refs))]
        kept_until = group.kept_until
        name, shape = self.kind(group)
        saved = [0, 0]
        for v, first in self.first_kept.items():
            if first == g:
                saved = plus(saved, scaled(self.values[v].bytes))
        kind = {"kind": name, "shape": shape, "reads": len(read), "saved_bytes": saved, "kept_until": kept_until,
                "differentiable": group.is_differentiable, "makes": [self.size(v) for v in made],
                "forward": forward, "forward_work": work_of(group.forward_operators)}
        if group.backward_operators:
            kind |= {"backward_makes": [self.size(v) for v in made_back], "backward": backward,
                     "backward_work": work_of(group.backward_operators)}
        text = json.dumps(kind, sort_keys=True)
        if text not in self.kind_of:
            self.kind_of[text] = len(self.kinds)
            self.kinds.append(kind)
        frozen = [p for p in dict.fromkeys(group.parameters) if not self.tree.parameters[p].trained]
        return [self.kind_of[text], group.module, sorted([*frozen, *group.gradients]),
                [self.forward_ids[v] for v in refs], [self.backward_ids[v] for v in back_refs]]

    def document(self, name, dtype, notes):
        tree = self.tree
        blocks = tree.blocks(self.run.recorder.called)
        ops = [self.op(g, group) for g, group in enumerate(self.groups)]
        flags = [(1 if tree.containers[i] else 0) + (2 if i in blocks else 0) for i in range(len(tree.names))]
        return {"schema": SCHEMA, "name": name, "torch": torch.__version__, "seq_len": self.run.seq_len,
                "dtype": NAMES[dtype], "batch": [scaled(b) for b in self.run.batch],
                "modules": [[n, c, f] for n, c, f in zip(tree.names, tree.classes, flags)],
                "parameters": [{"name": p.name, "shape": p.shape, **({"aliases": p.aliases} if p.aliases else {}),
                                **({} if p.trained else {"frozen": True})} for p in tree.parameters],
                "kinds": self.kinds, "ops": ops, "notes": notes}
