"""Runs a model once on tensors that have no data, and writes down what one forward and backward does."""
