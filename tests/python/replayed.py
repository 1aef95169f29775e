"""The memory of a model.json for a number of sequences, as docs/model-file.md says it is read: beside the program's own
reader, and much simpler. No checkpointing."""


def scaled(size, sequences):
    return size[0] + size[1] * sequences


class Replayed:
    """saved: bytes that forward leaves, without the batch; forward_peak; backward_peak with the parameters' gradients,
    which stay; end: those gradients."""

    def __init__(self, document, sequences):
        self.sequences, self.kinds, self.ops = sequences, document["kinds"], document["ops"]
        element = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}[document["dtype"]]
        self.sizes = [0 if p.get("frozen") else element * product(p["shape"]) for p in document["parameters"]]
        self.live, self.peak, self.alive = 0, 0, {}
        self.keepers = {}           # by value: ops whose backward it is kept for
        self.first, first = [], 0
        for op in self.ops:
            self.first.append(first)
            first += len(self.kinds[op[0]]["makes"])
        for i, op in enumerate(self.ops):
            for code, index in pairs(self.kinds[op[0]].get("backward", [])):
                if code >= 3:
                    self.keepers.setdefault(self.named(i, code, index), []).append(i)
        for i in range(len(self.ops)):
            self.forward(i)
        self.saved, self.forward_peak, self.peak = self.live, self.peak, self.live
        self.gradients, self.made, self.end = [], set(), 0
        for i in reversed(range(len(self.ops))):
            self.backward(i)
        self.backward_peak = self.peak

    def named(self, i, code, index):
        """The id of a value of the forward."""
        return self.first[i] + index if code == 0 or code % 2 else self.ops[i][3][index]

    def change(self, bytes_):
        self.live += bytes_
        self.peak = max(self.peak, self.live)

    def forward(self, i):
        kind = self.kinds[self.ops[i][0]]
        for code, index in pairs(kind["forward"]):
            value = self.named(i, code, index)
            if code == 0:
                self.alive[value] = scaled(kind["makes"][index], self.sequences)
                self.change(self.alive[value])
            elif value not in self.keepers:
                self.change(-self.alive.pop(value))

    def backward(self, i):
        kind, op = self.kinds[self.ops[i][0]], self.ops[i]
        base = len(self.gradients)
        self.gradients += [scaled(size, self.sequences) for size in kind.get("backward_makes", [])]
        grown = sum(self.sizes[p] for p in op[2] if p not in self.made)     # the part of another use is added to it
        self.made.update(op[2])
        self.end += grown
        self.change(grown)
        for code, index in pairs(kind.get("backward", [])):
            if code == 0:
                self.change(self.gradients[base + index])
            elif code < 3:
                self.change(-self.gradients[base + index if code == 1 else op[4][index]])
            else:
                value = self.named(i, code, index)
                if min(self.keepers[value]) == i:
                    self.change(-self.alive.pop(value))


def product(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def pairs(codes):
    return zip(codes[::2], codes[1::2])
