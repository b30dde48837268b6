"""Datasets, partitions, and the federations they make."""
