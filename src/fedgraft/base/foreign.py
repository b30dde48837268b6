"""Text from outside: a site's failure, a client's error, names that somebody else chose."""

LIMIT = 500
"""Characters that a text of somebody else's may take in a line, a record or a report."""


def plain(text: str, limit: int = LIMIT) -> str:
    """Return ``text`` as one line of printable characters, and no more of it than ``limit``.

    Line ends, control characters and marks that turn the direction of writing are written as escapes: a line break
    would forge lines of our own, and a terminal acts on the others.
    """
    shown = one_line(text[:limit])
    if len(text) <= limit and len(shown) <= limit:
        return shown
    return f"{shown[:limit]}... (cut: {len(text):,} characters)"


def one_line(text: str) -> str:
    """Write what cannot be printed as escapes; a text that can is as before."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
