"""What privacy costs: against the formula where there is one, and against a second accountant."""

import math
import warnings

import pytest
from scipy.stats import norm

from fedgraft.core.budget import Budget, epsilon, multiplier


def analytic(noise: float, epsilon: float) -> float:
    """The delta of one Gaussian mechanism (Balle and Wang, 2018)."""
    a, b = 1 / (2 * noise), epsilon * noise
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (10.0, 60), (30.0, 100)])
def test_without_sampling_it_is_the_formula(noise: float, steps: int) -> None:
    found = epsilon(1.0, noise, steps, 1e-5)
    assert analytic(noise / math.sqrt(steps), found) <= 1e-5
    assert analytic(noise / math.sqrt(steps), found * 0.995) > 1e-5


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.128, 1.5, 480), (0.01, 1.0, 3000), (0.016, 0.8, 1000), (0.5, 8.0, 200)]
)
def test_a_second_accountant_agrees(rate: float, noise: float, steps: int) -> None:
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = other.get_epsilon(1e-5)
    assert epsilon(rate, noise, steps, 1e-5) == pytest.approx(told, rel=0.01)


@pytest.mark.parametrize(("rate", "steps"), [(0.05, 300), (1.0, 60)])
@pytest.mark.parametrize("budget", [1.0, 8.0])
def test_noise_is_chosen_so_that_the_budget_is_spent_and_no_more(budget: float, rate: float, steps: int) -> None:
    noise = multiplier(budget, 1e-5, rate, steps)
    assert 0.998 * budget <= epsilon(rate, noise, steps, 1e-5) <= budget


def test_who_does_not_train_spends_nothing() -> None:
    budget = Budget(1.0, 1e-5, (0.5, 0.0), (2.0, 0.0), (4, 0), (3, 3))
    assert budget.spent(1) == budget.spent(0, asked=0) == 0.0
    assert budget.spent(0) == epsilon(0.5, 2.0, 12, 1e-5)
    assert budget.spent(0, asked=1) < budget.spent(0, asked=2) < budget.spent(0)


def test_sums_beside_the_steps_are_paid_for_too() -> None:
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(1.5, 0.1, 300), (20.0, 1.0, 30)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = other.get_epsilon(1e-5)
    assert epsilon(0.1, 1.5, 300, 1e-5, (20.0, 30)) == pytest.approx(told, rel=0.01)
    assert epsilon(0.1, 1.5, 300, 1e-5, (20.0, 30)) > epsilon(0.1, 1.5, 300, 1e-5)
    noise = multiplier(4.0, 1e-5, 0.1, 300, (20.0, 30))
    assert 3.99 < epsilon(0.1, noise, 300, 1e-5, (20.0, 30)) <= 4.0
    assert epsilon(0.1, 0.001, 3, 1e-5) == math.inf
