"""How each dialect of PyTorch is told a plan, and asked what it made of it."""
