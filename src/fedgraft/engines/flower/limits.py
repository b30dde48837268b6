"""What Flower allows: its own figures, which our files and sentences name; a test compares them with its own."""

AHEAD = 5
"""Seconds that a node's clock may be ahead of the server's."""
BEHIND = 305
"""Seconds that it may be behind: a signature is good for five minutes."""
PIECE = 5 * 2**20
"""Bytes of the largest piece in which Flower sends an array."""
