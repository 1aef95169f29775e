"""What the program says that a step issues and holds, as emitted_run.events_of has it, and where memory differs."""
import release

STATES = ["parameter shards", "optimizer states", "sharded gradients"]


SIZES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "i64": 8}


class Planned:
    """The events of a step as the program shows it (as emitted_run.events_of has them), and what is alive."""

    def __init__(self, step, plan, explain=False, grouped=False, latent=False):
        """grouped: attention's heads share keys; latent: they are made of a latent."""
        self.buffers, self.plan, self.explain, self.latent = step["buffers"], plan, explain, latent
        self.multiplies_out = grouped and plan["param_dtype"] in ("fp32", "fp64")
        self.said = {d["kind"]: d["bytes"] for d in step["known_differences"]}
        self.events, self.moments, self.snapshots = [], [], []
        self.counted = [0 if b["host"] or b["kind"] in ("scalars", "batch") else b["bytes"] for b in self.buffers]
        self.names, self.choices, self.ends = ["kept"] * len(self.buffers), 0, 0
        for op in step["ops"]:
            if op["what"].startswith(("forward moe_dispatch", "recompute moe_dispatch")):
                self.choices = self.buffers[op["args"][1]]["bytes"]
                self.ends = max(self.buffers[b]["bytes"] for b in op["memory"]
                                if b >= 0 and self.buffers[b]["kind"] != "activations") - 2 * self.choices
            for b in op["memory"]:
                if b >= 0:
                    self.names[b] = op["what"]
                    if self.buffers[b]["kind"] == "scratch" and op["action"] == "backward" and self.in_kernel(op, b):
                        self.counted[b] = 0
        self.in_kernels = max([b["bytes"] - n for b, n in zip(self.buffers, self.counted) if b["kind"] == "scratch"
                               and not b["host"]], default=0)
        kept = {plan["master_dtype"], plan.get("trained_dtype", plan["master_dtype"])}
        self.casts_alone = plan["mesh"][1]["size"] == 1 and kept != {plan["param_dtype"]}
        self.cast_at_once = 0
        if self.casts_alone:
            self.counted = [0 if b["kind"] == "cast shards" else n for b, n in zip(self.buffers, self.counted)]
        self.live = self.alive_before(step["ops"])
        self.total = sum(self.counted[b] for b in self.live)
        self.peak, self.at_peak, self.freed_unit, self.op, self.peak_op = 0, [], None, None, None
        for op in step["ops"]:
            self.run(op)
        self.retained()

    def in_kernel(self, op, b):
        """What flash's and the embedding's backward take inside, and the sorts (two orders in, two out) that gradients
        of gathered rows begin with: PyTorch's dispatcher does not see it. It sees attention that is multiplied out."""
        kind = op["what"].split()[1]
        if kind == "attention" and self.latent:   # but the copies of the keys' gradients
            return b == next(m for m in op["memory"] if m >= 0 and self.buffers[m]["kind"] == "scratch")
        if kind == "attention":
            return not self.multiplies_out
        return kind == "embedding" or kind in (
            "moe_dispatch", "moe_combine") and self.buffers[b]["bytes"] == 4 * self.choices

    def alive_before(self, ops):
        """What the step frees before it makes it, or never makes."""
        made = {b for op in ops for b in op["memory"] if b >= 0}
        alive = {b for b, buffer in enumerate(self.buffers) if b not in made and buffer["kind"] in STATES}
        seen = set()
        for op in ops:
            for b in op["memory"]:
                if b < 0 and -1 - b not in seen:
                    alive.add(-1 - b)
                seen.add(b if b >= 0 else -1 - b)
        return alive

    def saved_at_peak(self):
        """Bytes that the op of the peak makes for a backward, if that will make them again."""
        if not self.peak_op or self.peak_op["action"] != "forward":
            return 0
        return sum(self.counted[b] for b in self.peak_op["memory"]
                   if b >= 0 and self.buffers[b]["kind"] == "saved for backward" and -1 - b in self.peak_op["memory"])

    def adapted(self):
        """By unit: sizes of what goes into the adapted layers that are units of their own, and comes out of them."""
        layers = {}
        for b, name in enumerate(self.names):
            made = self.buffers[b]["kind"] == "activation gradients" and name.startswith("backward linear")
            if made and ".lora_A." in name or self.buffers[b]["kind"] == "activations" and ".lora_B." in name:
                layers.setdefault(name.split()[2].split(".lora_")[0], set()).add(self.counted[b])
        return {u: layers[unit["modules"][0]] for u, unit in enumerate(self.plan["units"])
                if unit["modules"][0] in layers}

    def snapshot(self):
        rows = [(self.counted[b], f"{self.buffers[b]['kind']}: {self.names[b]}") for b in self.live
                if self.counted[b] and self.names[b] != "kept"]
        return rows + [(sum(self.counted[b] for b in self.live if self.names[b] == "kept"), "kept")]

    def moment(self, what, unit, total=None):
        self.moments.append([what, unit, self.total if total is None else total])
        if self.explain:
            self.snapshots.append(self.snapshot())

    def elements(self, b):
        return self.buffers[b]["bytes"] // SIZES[self.buffers[b]["dtype"]]

    def ranks(self, op):
        replicate, shard = (d["size"] for d in self.plan["mesh"])
        if op["communicator"] == "replicate":
            return replicate
        return self.plan["units"][op["unit"]]["reshard_after_forward"] if op["communicator"] == "reshard" else shard

    def retained(self):
        left = [(self.buffers[b]["unit"], self.buffers[b]["parameter"], b) for b in self.live
                if self.buffers[b]["kind"] in ("gradients", "accumulators")]
        self.events.extend(["retained", u, self.elements(b), self.buffers[b]["dtype"]] for u, _, b in sorted(left))

    def appear(self, b):
        self.live.add(b)
        self.total += self.counted[b]
        self.note_peak(self.total)

    def note_peak(self, total):
        if total > self.peak:
            self.peak, self.at_peak, self.peak_op = total, self.snapshot() if self.explain else [], self.op

    def copy_alone(self, op):
        """A unit of one rank: PyTorch casts and copies its parameters one after the other, where the program casts all
        of them at once. Memory as PyTorch has it; the program has `cast_at_once` bytes more."""
        sizes, before = [self.counted[b] for b in op["memory"] if b >= 0], 0
        for i, size in enumerate(sizes):
            self.note_peak(self.total + sum(sizes[:i]) + before + size)
            self.note_peak(self.total + sum(sizes[:i + 1]) + size)
            before = size
        self.cast_at_once = max(self.cast_at_once, sum(sizes) - before)
        return before

    def own_gradients(self):
        """Bytes of the parameters' gradients that the op of the peak makes."""
        return sum(self.counted[b] for b in self.peak_op["memory"]
                   if b >= 0 and self.buffers[b]["kind"] == "gradients") if self.peak_op else 0

    def go(self, b, before=None):
        self.live.discard(b)
        kind, unit = self.buffers[b]["kind"], self.buffers[b]["unit"]
        if kind == "unsharded parameters" and unit != self.freed_unit:
            self.freed_unit = unit
            self.events.append(["free", unit, 0, ""])
            self.moment("free", unit, before)
        elif kind in ("gather buffers", "reduce inputs"):
            what = "free_gather" if kind == "gather buffers" else "free_input"
            self.events.append([what, unit, self.elements(b), ""])
        self.total -= self.counted[b]

    def run(self, op):
        if op["action"] == "load_batch" and op["micro_batch"] > 0:
            self.retained()
        if op["action"] != "keep_shard" or op["unit"] != self.freed_unit:
            self.freed_unit = None
        if op["action"] == "optimizer" and not self.before_optimizer():
            self.moments.append(["peak", -1, self.peak])
            self.snapshots.append(self.at_peak)
        # What an op frees stands last; what appears and goes inside it stands before.
        memory = op["memory"]
        last = max((i for i, b in enumerate(memory) if b >= 0), default=-1) + 1
        self.op, alone = op, 0
        before = self.total if op["action"] == "keep_shard" else None   # PyTorch's hook begins before the first clone
        if op["action"] == "gather_copy_out" and self.casts_alone:
            alone = self.copy_alone(op)
        for b in memory[:last]:
            self.appear(b) if b >= 0 else self.go(-1 - b)
        self.total += alone
        self.issue(op)
        self.total -= alone
        for b in memory[last:]:
            self.go(-1 - b, before if self.buffers[-1 - b]["unit"] == op["unit"] else None)

    def before_optimizer(self):
        return self.moments[-1:] and self.moments[-1][0] == "peak"

    def issue(self, op):
        action, args, unit = op["action"], op["args"], op["unit"]
        if unit < 0 or not args:
            return
        first = [action, unit, self.elements(args[0]), self.buffers[args[0]]["dtype"]] if args[0] >= 0 else None
        if action == "all_gather":
            self.events.append(first + [op["communicator"], self.ranks(op)])
        elif action == "gather_copy_out":
            self.events.append(["copy_out", unit, 0, ""])
            slabs = sum(self.counted[b] for b in op["memory"] if b >= 0 and self.buffers[b]["kind"] == "scratch"
                        and self.buffers[b]["unit"] == unit)
            self.moment("copy_out", unit, self.total - slabs)    # of other dimensions: gone when PyTorch notes it
        elif action == "divide_gradient" and len(args) == 1:
            self.events.append(["divide"] + first[1:] + [op["divisor"]])
        elif action == "all_reduce" or action == "reduce_scatter" and (
                self.plan["mesh"][1]["size"] > 1 or release.REDUCES_ALONE):
            self.events.append(first + [op["communicator"], self.ranks(op), op["reduction"].replace("-", "_")])


KINDS = ["tables", "whole operations", "adapted units", "latent parts",    # DifferenceKind, known_differences.h
         "wide gradients"]


def memory_difference(planned, theirs, tables, kinds):
    """None, or the moment at which the bytes that are alive differ most. Every byte is compared but those of KINDS:
    they have to be what the program says of them (`said`), and are noted in `kinds` with their part of the peak."""
    ours, peak, said = planned.moments, theirs[-1][2], planned.said
    found = {"tables": tables, "whole operations": planned.cast_at_once}
    wrong = {"tables": [said.get("tables", 0), tables]} if said.get("tables", 0) != tables else {}
    high = ours[-1][2] - peak
    if 0 < high <= max(planned.own_gradients(), planned.saved_at_peak()) + planned.ends:
        found["whole operations"] = max(high, planned.cast_at_once)
        ours = ours[:-1] + [theirs[-1]]
    # Where a kernel takes more inside than is compared here, another operation has the program's peak.
    if found["whole operations"] > said.get("whole operations", 0) + planned.in_kernels:
        wrong["whole operations"] = [said.get("whole operations", 0), found["whole operations"]]
    adapted = planned.adapted()
    between = [b[2] - a[2] for a, b in zip(ours[:-1], theirs) if b[2] - a[2] in adapted.get(a[1], ())]
    if between:
        found["adapted units"] = max(between)
        if max(between) > said.get("adapted units", 0):
            wrong["adapted units"] = [said.get("adapted units", 0), max(between)]
        ours = [b if b[2] - a[2] in adapted.get(a[1], ()) else a for a, b in zip(ours[:-1], theirs)] + ours[-1:]
    if said.get("latent parts", 0):   # at the hooks of units inside; peaks are equal
        names = [u["modules"][0] for u in planned.plan["units"]]
        apart = [abs(a[2] - b[2]) if a[1] >= 0 and ".self_attn." in names[a[1]] else 0 for a, b in zip(ours, theirs)]
        if 0 < max(apart) <= said["latent parts"]:
            found["latent parts"] = max(apart)
            ours = [b if d else a for a, b, d in zip(ours, theirs, apart)]
    if said.get("wide gradients", 0):
        apart = [b[2] - a[2] for a, b in zip(ours, theirs)]
        if 0 < max(apart) <= said["wide gradients"]:
            found["wide gradients"] = max(apart)
            ours = [b if d > 0 else a for a, b, d in zip(ours, theirs, apart)]
    for kind, size in found.items():
        if size:
            kinds[kind].append(size / peak)
    if wrong:
        return {"memory": "said and found", **wrong}
    worst = max(zip(ours, theirs, strict=True), key=lambda pair: abs(pair[0][2] - pair[1][2]))
    if worst[0] == worst[1]:
        return None
    return {"memory": worst[0][:2], "ours": worst[0][2], "theirs": worst[1][2],
            "of the peak": round((worst[0][2] - worst[1][2]) / peak, 4),
            "peaks": [planned.moments[-1][2], peak, round(planned.moments[-1][2] / peak - 1, 4)]}
