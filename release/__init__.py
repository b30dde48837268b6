"""A release: what is built, and the tests of what was built."""
