"""Other libraries on the same work; each in an environment of its own."""
