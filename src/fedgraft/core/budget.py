"""What training with differential privacy costs: epsilon and delta of each client, and the noise that a budget needs.

Each step of private training is a Gaussian mechanism on a Poisson sample of a client's training samples. Its cost over
all steps is worked out by Google's dp-accounting from privacy loss distributions, rounded upwards. Two datasets are
neighbours if one sample of the one counts nothing in the other ("zero-out"): the number of samples is the same, and is
not a secret.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedgraft.base.errors import UserError

GRID = 1e-3
"""How finely a privacy loss is told apart; coarser is faster and dearer."""
CLOSE = 1e-3
"""How much of a budget, in proportion, may be left over when noise is chosen."""
Beside = tuple[float, int]
FAINT = 0.02
"""Less noise than this is none: a step would cost an epsilon above a thousand, and accounting for it much memory."""


@lru_cache(maxsize=4096)
def epsilon(rate: float, noise: float, steps: int, delta: float, beside: Beside = (0.0, 0)) -> float:
    """Return the epsilon of so many steps on Poisson samples at a ``rate``; ``noise`` is a multiple of the clip.

    ``beside`` them there may be sums over all samples: their noise, as a multiple of what a sample can bring, and how
    many there are.
    """
    kinds = [(chance, strength, n) for chance, strength, n in ((rate, noise, steps), (1.0, *beside)) if n]
    if not kinds:
        return 0.0
    accounting, accountant = _accounting()
    account = accountant(accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=GRID)
    for chance, strength, times in kinds:
        if strength < FAINT:
            return math.inf
        one = accounting.GaussianDpEvent(strength)
        event = accounting.PoissonSampledDpEvent(chance, one) if chance < 1 else one
        account.compose(accounting.SelfComposedDpEvent(event, times))
    return float(account.get_epsilon(delta))


@lru_cache(maxsize=4096)
def multiplier(budget: float, delta: float, rate: float, steps: int, beside: Beside = (0.0, 0)) -> float:
    """Return the least noise, to within a thousandth of the budget, with which so many steps stay inside it.

    The budget pays for what is ``beside`` them too.
    """
    if not steps:
        return 0.0
    aim, goal = _guess(budget, delta, rate, steps), budget * (1 - CLOSE / 2)
    low: tuple[float, float] | None = None  # noise that is too little, and what it costs; then noise that will do
    high: tuple[float, float] | None = None
    for _ in range(60):
        cost = epsilon(rate, aim, steps, delta, beside)
        if cost > budget:
            low = aim, cost
        else:
            high = aim, cost
        if high is not None and (high[1] >= budget * (1 - CLOSE) or (low and high[0] / low[0] < 1 + 1e-4)):
            return high[0]
        if low is None or high is None:  # epsilon falls about as fast as noise grows, or faster
            aim *= cost / goal
            continue
        slope = math.log(high[0] / low[0]) / math.log(high[1] / low[1])
        aim = low[0] * (goal / low[1]) ** slope
        if not low[0] * (1 + 1e-6) < aim < high[0] * (1 - 1e-6):
            aim = math.sqrt(low[0] * high[0])
    raise UserError(f"no noise was found that keeps {steps} steps within epsilon {budget:g} at delta {delta:g}")


def _guess(budget: float, delta: float, rate: float, steps: int) -> float:
    """About the noise that is needed: many steps are as one of a Gaussian mechanism (Bu et al., 2020)."""

    def spent(mu: float) -> float:
        """The delta of a Gaussian mechanism that moves its mean by ``mu`` deviations."""
        a, b = (math.erfc((budget / mu + sign * mu / 2) / math.sqrt(2)) / 2 for sign in (-1, 1))
        return a - math.exp(budget) * b

    low, high = 1e-6, 100.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if budget > 500 or spent(middle) <= delta else (low, middle)
    one = low / (rate * math.sqrt(steps))
    return 1.02 / math.sqrt(math.log1p(one**2)) if rate < 1 else 1.02 / one


def _accounting() -> tuple[Any, Any]:
    """Import the accountant only where there is something to account for."""
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise UserError("differential privacy needs dp-accounting: pip install 'fedgraft[privacy]'") from None
    return dp_accounting, PLDAccountant


@dataclass(frozen=True)
class Budget:
    """How the clients of a run train privately, and what that costs each of them.

    A client makes at most ``steps`` noised steps each time that it is asked, and is asked ``rounds`` times. A client
    whose training samples are not known here has a rate of 0.
    """

    clip: float
    delta: float
    rates: tuple[float, ...]
    noises: tuple[float, ...]
    steps: tuple[int, ...]
    rounds: tuple[int, ...]
    aside: frozenset[str] = frozenset()
    """Names of trainings that never reach what leaves a client, and are not noised."""
    sums: tuple[int, ...] = ()
    """How many noised sums over its samples each client tells, at most, each time that it is asked."""
    sum_noises: tuple[float, ...] = ()
    feature_clip: float = 1.0

    def told(self, client: int, asked: int | None = None) -> Beside:
        """Return the noise of a client's sums, and how many it has told."""
        if not self.sums:
            return 0.0, 0
        return self.sum_noises[client], self.sums[client] * (self.rounds[client] if asked is None else asked)

    def spent(self, client: int, asked: int | None = None) -> float:
        """Return a client's epsilon after it was ``asked`` so often; as often as planned, unless told."""
        times = self.rounds[client] if asked is None else asked
        if not self.rates[client]:
            return 0.0
        steps, beside = self.steps[client] * times, self.told(client, asked)
        cost = epsilon(self.rates[client], self.noises[client], steps, self.delta, beside)
        return cost if math.isfinite(cost) else math.inf
