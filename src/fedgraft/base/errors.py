"""Errors are sentences that a user can act on."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the user asked for cannot be done; the text says what, and what would be right.

    The command line prints it as one sentence and exits with code 2, never with a traceback.
    """


class ContractError(AssertionError):
    """A method broke one of the engine's contracts: a bug in the method, not in what the user typed."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Build the error for a misspelt name, with the nearest valid one."""
    known = sorted(known)
    name = name if len(name) <= 100 else f"{name[:100]}..."
    lower = {each.lower(): each for each in known}  # FedAPA is what its paper calls fedapa
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[near[0]]!r}?" if near else f"there are: {', '.join(known)}"
    return UserError(f"no {kind} is called {name!r}; {hint}")
