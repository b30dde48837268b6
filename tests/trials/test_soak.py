"""The soak in a small dose, and that growth would be noticed."""

from pathlib import Path

import pytest

from trials.soak import BOUND, Trend, children, soak

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def test_growth_is_told_from_warming_up() -> None:
    warming = [1000.0 + 50 * number for number in range(10)] + [1500.0] * 90
    assert Trend.of(warming) == Trend(1500.0, 1500.0, 0.0)
    leaking = [1000.0 + 2 * BOUND * number for number in range(100)]
    assert Trend.of(leaking).slope == pytest.approx(2 * BOUND)
    assert Trend.of(leaking).last > Trend.of(leaking).first


def test_every_process_is_sampled_after_every_round() -> None:
    others = len(children())  # that tests before this one may have left to those after it
    sampler = soak(3, "fedapa", workers=2)
    assert {name: len(series) for name, series in sampler.samples.items()} == {
        "parent": 3,
        **{f"worker {number + 1}": 3 for number in range(others + 2)},
    }
    assert all(kibibytes > 1024 for series in sampler.samples.values() for kibibytes in series)
    assert len(sampler.seconds) == 3
