"""How a server averages: by the plain mean, or so that a few hostile clients cannot carry the result away.

    mean            as the method weighs it
    median          in every coordinate the middle value; nearly half of the clients may be hostile
    trimmed:SHARE   in every coordinate the mean without that share of the lowest and of the highest values, rounded up:
                    of three or four replies one at each end; two replies cannot be told apart, and are averaged
    clip:NORM       the method's mean, after drawing every upload to within NORM of the coordinates' medians

Medians and trimmed means count all clients alike, for a weight that a client names can be a lie too. This module is
read by the configuration, so it imports nothing heavy; ``core/bank.py`` does the work.
"""

import math
from typing import Literal, get_args

from fedgraft.base.errors import UserError

Kind = Literal["mean", "median", "trimmed", "clip"]


def parse(text: str) -> tuple[Kind, float]:
    """Read ``median`` or ``trimmed:0.2``."""
    kind, colon, figure = text.partition(":")
    for known in get_args(Kind):
        if kind == known and bool(colon) == (known in ("trimmed", "clip")):
            return known, _amount(known, figure) if colon else 0.0
    raise UserError(f"is mean, median, trimmed:SHARE or clip:NORM, not {text!r}")


def _amount(kind: Kind, figure: str) -> float:
    try:
        amount = float(figure)
    except ValueError:
        amount = math.nan
    if kind == "trimmed" and not 0 <= amount < 0.5:
        raise UserError(f"trims a share from 0 up to, but not, 0.5 at each end, not {figure!r}")
    if kind == "clip" and not 0 < amount < math.inf:
        raise UserError(f"clips to a norm above 0, not {figure!r}")
    return amount
