"""Mixing weights on the simplex: answers by hand, by brute force and in another form, and what must never happen."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from fedgraft.core import simplex
from fedgraft.core.simplex import minimise, mixtures, prune


def random_statistics(clients: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal((clients, width))), torch.tensor(10 ** rng.uniform(-3, 1, clients))


def definition(H: Tensor, v: Tensor) -> Tensor:
    """Q of every client, entry by entry."""
    m = len(H)
    Q = torch.zeros(m, m, m, dtype=torch.float64)
    for i, j, k in itertools.product(range(m), repeat=3):
        Q[i, j, k] = (H[i] - H[j]) @ (H[i] - H[k]) + (v[j] if j == k else 0.0)
    return Q


def unanswered(Q: Tensor) -> Tensor:
    return torch.full(Q.shape[:2], torch.nan)


def brute_force(Q: Tensor) -> float:
    """The least value over all supports, each solved by its equality-constrained optimality conditions."""
    n, best = len(Q), float("inf")
    for size in range(1, n + 1):
        for F in itertools.combinations(range(n), size):
            system = np.zeros((size + 1, size + 1))
            system[:size, :size] = 2 * Q[np.ix_(F, F)]
            system[:size, size] = system[size, :size] = 1
            b = np.linalg.lstsq(system, np.r_[np.zeros(size), 1], rcond=None)[0][:size]
            if (b >= -1e-12).all() and abs(b.sum() - 1) < 1e-9:
                best = min(best, float(b @ Q[np.ix_(F, F)].numpy() @ b))
    return best


def assert_optimal(Q: Tensor, beta: Tensor, tolerance: float = 1e-9) -> None:
    """On the simplex, and Q beta equal on the support and nowhere below, up to the scale of Q."""
    assert bool((beta >= 0).all())
    assert float(beta.sum()) == pytest.approx(1, abs=1e-12)
    slope = Q @ beta
    level, scale = beta @ slope, Q.diagonal().max()
    assert bool((slope >= level - tolerance * scale).all())
    assert bool((beta * (slope - level).abs() <= tolerance * scale).all())


@pytest.mark.parametrize("rank", [1, 2, 4, 6])
def test_brute_force_finds_nothing_better(rank: int) -> None:
    rng = np.random.default_rng(rank)
    X = torch.tensor(rng.standard_normal((8, 5, rank)))
    Q = X @ X.mT
    for matrix, beta in zip(Q, minimise(Q, unanswered(Q)), strict=True):
        assert_optimal(matrix, beta)
        assert float(beta @ matrix @ beta) == pytest.approx(brute_force(matrix), abs=1e-9)


@pytest.mark.parametrize(
    ("variance", "exploded", "atol"), [(1e-6, 1, 1e-8), (1e-2, 1, 1e-8), (1, 1, 1e-8), (1e4, 1, 1e-8), (1, 1e4, 1e-5)]
)
def test_the_programme_in_its_wide_form_agrees(variance: float, exploded: float, atol: float) -> None:
    # the programme as non-negative least squares: [D; diag(sqrt v); 1] b = [0; 0; 1], then b / sum b
    H, v = random_statistics(30, 12, 0)
    v *= variance
    H[0] *= exploded
    for i, beta in enumerate(mixtures(H, v)):
        A = np.vstack([(H[i] - H).T, np.diag(v.sqrt()), np.ones((1, 30))])
        b, _ = nnls(A, np.r_[np.zeros(len(A) - 1), 1], maxiter=10_000)
        np.testing.assert_allclose(beta, b / b.sum(), atol=atol, rtol=0)


def test_by_hand() -> None:
    # beta'Qbeta = a^2 + 2 (1 - a)^2 is least at a = 2/3; with the correlation 3/2 > 1 the second client is no help
    Q = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.5], [1.5, 4.0]]])
    expected = torch.tensor([[2 / 3, 1 / 3], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(minimise(Q, unanswered(Q)), expected)


def test_equal_means_are_weighed_by_inverse_variance() -> None:
    H = torch.full((3, 4), 0.3)
    expected = torch.tensor([4 / 7, 2 / 7, 1 / 7], dtype=torch.float64).expand(3, 3)
    torch.testing.assert_close(mixtures(H, torch.tensor([1.0, 2.0, 4.0])), expected)
    torch.testing.assert_close(mixtures(H, torch.full((3,), 0.7)), torch.full((3, 3), 1 / 3, dtype=torch.float64))


def test_equal_means_are_shared_by_those_without_variance() -> None:
    beta = mixtures(torch.full((4, 2), 0.3), torch.tensor([0.0, 1.0, 0.0, 3.0]))
    torch.testing.assert_close(beta, torch.tensor([0.5, 0, 0.5, 0], dtype=torch.float64).expand(4, 4))


def test_without_any_difference_all_count_alike() -> None:
    for H in (torch.zeros(5, 3), torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).repeat(5, 1)):
        torch.testing.assert_close(mixtures(H, torch.zeros(5)), torch.full((5, 5), 0.2, dtype=torch.float64))


def test_without_variance_everybody_keeps_to_itself() -> None:
    H, _ = random_statistics(6, 9, 3)
    torch.testing.assert_close(mixtures(H, torch.zeros(6)), torch.eye(6, dtype=torch.float64))


def test_only_differences_count() -> None:
    H, v = random_statistics(10, 5, 8)
    torch.testing.assert_close(mixtures(H + 1e7, v), mixtures(H, v), atol=1e-5, rtol=0)


def test_twins_share_alike() -> None:
    H, _ = random_statistics(4, 9, 4)
    beta = mixtures(H[[0, 1, 1, 2, 3]], torch.zeros(5))
    torch.testing.assert_close(beta[1], torch.tensor([0, 0.5, 0.5, 0, 0], dtype=torch.float64), atol=1e-4, rtol=0)
    beta = mixtures(H[[0, 1, 1, 2, 3]], torch.full((5,), 0.5))
    torch.testing.assert_close(beta[:, 1], beta[:, 2])


def test_a_single_client_has_all_the_weight() -> None:
    assert mixtures(torch.randn(1, 3), torch.zeros(1)).tolist() == [[1.0]]


def test_the_gram_matrices_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    H, v = random_statistics(7, 5, 1)
    seen: list[Tensor] = []

    def note(Q: Tensor, fallback: Tensor) -> Tensor:
        seen.append(Q)
        return minimise(Q, fallback)

    monkeypatch.setattr(simplex, "minimise", note)
    whole = mixtures(H, v)
    Q = seen[0]
    torch.testing.assert_close(Q, definition(H, v))
    assert torch.equal(Q, Q.mT)
    for i in range(7):
        assert torch.equal(Q[i, i], v[i] * torch.eye(7, dtype=torch.float64)[i]), "row i is zero but for the variance"
        assert float(torch.linalg.eigvalsh(Q[i])[0]) >= float(v.min()) - 1e-12
    seen.clear()
    monkeypatch.setattr(simplex, "BLOCK", 2 * 49)
    assert torch.allclose(mixtures(H, v), whole, atol=1e-12)
    assert [len(Q) for Q in seen] == [2, 2, 2, 1], "large federations are solved in blocks"


def test_a_batch_is_its_members_one_by_one() -> None:
    H, v = random_statistics(12, 4, 2)
    Q = definition(H, v)
    together = minimise(Q, unanswered(Q))
    for matrix, beta in zip(Q, together, strict=True):
        torch.testing.assert_close(minimise(matrix[None], unanswered(Q[:1]))[0], beta)


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e20, 1e150])
def test_the_scale_does_not_matter(scale: float) -> None:
    H, v = random_statistics(9, 4, 5)
    Q = definition(H, v)
    torch.testing.assert_close(minimise(scale * Q, unanswered(Q)), minimise(Q, unanswered(Q)), atol=1e-8, rtol=0)


def test_what_has_no_answer_falls_back_and_spoils_nobody_else() -> None:
    good = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    nan, infinite, indefinite, negative = good.clone(), good.clone(), good.clone(), -good
    nan[0, 2], infinite[0, 0] = torch.nan, torch.inf
    indefinite[0, 1] = indefinite[1, 0] = 9.0
    fallback = torch.eye(3)[[0, 1, 2, 0, 1]]
    beta = minimise(torch.stack([nan, infinite, indefinite, negative, good]), fallback)
    assert torch.equal(beta[:4], fallback[:4].double())
    assert beta[4].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert torch.equal(mixtures(torch.tensor([[1.0], [torch.nan]]), torch.ones(2)), torch.eye(2, dtype=torch.float64))


def test_a_solver_that_does_not_end_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.nnls", lambda A, b, maxiter: nnls(A, b, maxiter=1))
    H, v = random_statistics(6, 9, 3)
    assert torch.equal(mixtures(H, v), torch.eye(6, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_wild_variances_are_solved_too(seed: int) -> None:
    """Variances over eighteen orders of magnitude, and more clients than dimensions."""
    rng = np.random.default_rng(seed)
    H, v = torch.tensor(rng.standard_normal((60, 8))), torch.tensor(10 ** rng.uniform(-12, 6, 60))
    beta = mixtures(H, v)
    for i in range(60):
        slope = (H[i] - H) @ ((H[i] - H).T @ beta[i]) + v * beta[i]
        level = float(beta[i] @ slope)
        assert level - float(slope.min()) <= 1e-6 * level + 1e-9 * float((H[i] - H).square().sum(1).median())


rows = st.integers(1, 7).flatmap(
    lambda m: st.tuples(
        st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=m, max_size=m),
        st.lists(st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0]), min_size=m, max_size=m),
    )
)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_the_optimality_conditions_hold_whatever_the_ties(drawn: tuple[list[list[int]], list[float]]) -> None:
    H, v = torch.tensor(drawn[0], dtype=torch.float64), torch.tensor(drawn[1], dtype=torch.float64)
    beta = mixtures(H, v)
    for i in range(len(H)):
        assert_optimal((H[i] - H) @ (H[i] - H).T + torch.diag(v), beta[i])


@pytest.mark.parametrize("variance", [1e-3, 1.0, 1e3])
def test_a_hundred_clients_take_well_under_a_second(variance: float) -> None:
    H, v = random_statistics(100, 1280, 6)
    started = time.process_time()
    beta = mixtures(H, variance * v)
    assert time.process_time() - started < 0.8
    assert beta.sum(1).tolist() == pytest.approx([1] * 100)


def test_small_weights_are_dropped() -> None:
    assert prune(torch.tensor([[0.6, 0.399, 0.001]]), 0.01)[0].tolist() == pytest.approx(
        [0.6 / 0.999, 0.399 / 0.999, 0]
    )
    assert prune(torch.tensor([[0.6, 0.4]]), 0.0)[0].tolist() == pytest.approx([0.6, 0.4])
    many = torch.full((1, 2000), 1 / 2000)
    assert torch.equal(prune(many, 1e-3), many), "when all are small, none is"
