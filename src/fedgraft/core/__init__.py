"""What every engine and method shares: hooks, messages, models as flat vectors, training, evaluation, the loop."""
