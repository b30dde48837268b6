"""The board: every method under one protocol, with equal tuning budgets, several draws and paired statistics."""
