"""Learning rates over rounds.

    constant             the same in every round
    exponential:FACTOR   times FACTOR after each round
    step:EVERY,FACTOR    times FACTOR after every so many rounds
    cosine               from the rate itself down to zero along half a cosine

This module is read by the configuration, so it imports nothing heavy.
"""

import math
from functools import lru_cache


@lru_cache
def parse(text: str) -> tuple[str, tuple[float, ...]]:
    """Read ``cosine`` or ``step:30,0.1``."""
    kind, _, figures = text.partition(":")
    try:
        numbers = tuple(float(figure) for figure in figures.split(",")) if figures else ()
    except ValueError:
        numbers = (math.nan,)
    valid = {
        "constant": numbers == (),
        "exponential": len(numbers) == 1 and 0 < numbers[0] <= 1,
        "step": len(numbers) == 2 and numbers[0] >= 1 and numbers[0].is_integer() and 0 < numbers[1] <= 1,
        "cosine": numbers == (),
    }
    if not valid.get(kind, False):
        raise ValueError(
            "is constant, exponential:FACTOR, step:EVERY,FACTOR or cosine, with a FACTOR above 0 and up to 1, "
            f"not {text!r}"
        )
    return kind, numbers


def factor(text: str, round: int, rounds: int) -> float:
    """What a rate is multiplied with in a round, counted from 0."""
    kind, numbers = parse(text)
    if kind == "exponential":
        return numbers[0] ** round
    if kind == "step":
        return numbers[1] ** (round // int(numbers[0]))
    if kind == "cosine":
        return (1 + math.cos(math.pi * round / rounds)) / 2
    return 1.0
