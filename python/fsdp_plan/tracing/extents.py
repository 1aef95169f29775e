"""Sizes that grow with the number of sequences. The model is traced with a prime number of sequences that divides
nothing else: an extent that it divides is one of sequences."""
BATCH = 10007


def per_sequence(extent):
    """An extent of a tensor, or a number of bytes; what grows with the sequences is negative: -8192 is 8192 of each."""
    return -(extent // BATCH) if extent % BATCH == 0 else extent


def scaled(total):
    """[what is always there, what comes with each sequence]"""
    return [0, total // BATCH] if total % BATCH == 0 else [total, 0]


def plus(a, b):
    return [a[0] + b[0], a[1] + b[1]]
