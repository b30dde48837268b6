"""Trials of reliability, run by hand (`make trials`) and in small doses by the tests; see docs/reliability.md."""
