"""Attacks on a finished run: what a server that follows the method, but is curious, could learn from what was sent."""
