"""Runs: their configuration, their directory, their results."""
