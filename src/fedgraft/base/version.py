"""The one place that states the version, and that of the arithmetic."""

__version__ = "0.2.0"
ARITHMETIC = 3
"""Raised with every change that gives a run other bits: a run of another arithmetic is not taken for this one's."""
