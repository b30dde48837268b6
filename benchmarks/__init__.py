"""What speed and memory are measured with: ``python -m benchmarks``."""
