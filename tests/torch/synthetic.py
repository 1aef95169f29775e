"""What executor/data/synthetic.cpp draws, written again: weights and tokens from one hash."""

import math

import torch

MASK = 2**64 - 1


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def fnv(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def initial(seed, name, shape):
    """The first value of a parameter, in fp64."""
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=torch.float64)
    key, values = mix(seed ^ fnv(name)), []
    for i in range(math.prod(shape)):
        h = mix(key ^ i)
        values.append(((h & 65535) + (h >> 16 & 65535) + (h >> 32 & 65535)
                       + (h >> 48) - 131070) * 5.285799584260604e-07)
    return torch.tensor(values, dtype=torch.float64).view(shape)


def token(seed, sequence, position, vocab):
    return mix(mix(mix(seed ^ 0x746F6B656E73) ^ sequence) ^ position) % vocab
