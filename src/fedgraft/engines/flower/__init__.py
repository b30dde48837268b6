"""Flower as an engine: the same methods on real machines."""
