"""Training that diverges: what is no number must not pass for an answer."""

from pathlib import Path
from random import Random

import numpy as np

import fedgraft
from fedgraft.data.federation import Federation, Site, own_data
from trials.attack import BreachError, attack


def skewed(rng: Random, sites: int = 4) -> Federation:
    """Nine of ten samples are of class 0: who always says so is right nine times of ten."""
    noise = np.random.default_rng(rng.getrandbits(32))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        return noise.standard_normal((count, 6)).astype(np.float32), (np.arange(count) % 10 == 0).astype(np.int64)

    return own_data([Site(*draw(40), *draw(20)) for _ in range(sites)], task="classification:2", name="skewed")


@attack("divergence: a rate at which every network becomes NaN", "no right answers, and every client is named")
def absurd_rate(_: Path, rng: Random) -> str:
    lr = 10.0 ** rng.randint(5, 6)
    run = fedgraft.run("local", skewed(rng), lr=lr, rounds=6, workers=1)
    if (accuracy := run.value) > 0:
        raise BreachError(f"{100 * accuracy:.1f} % right answers of networks that are not finite")
    if run.result["diverged"]["trained"] != [0, 1, 2, 3]:
        raise BreachError(f"named as diverged: {run.result['diverged']}")
    return "0 % and four clients named"
