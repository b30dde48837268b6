"""The bank against plain loops in float64, whatever the numbers, and whatever the order of the clients."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgraft.core import bank


@st.composite
def banks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Models of any size, some alike, some huge, some zero; and weights that are not all zero."""
    clients, width = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    scale = 10.0 ** rng.integers(-6, 7, (clients, 1)) * rng.integers(0, 2, (clients, 1))
    rows = torch.tensor(rng.standard_normal((clients, width)) * scale, dtype=torch.float32)
    if draw(st.booleans()):
        rows[-1] = rows[0]
    weights = rng.integers(0, 50, clients)
    weights[draw(st.integers(0, clients - 1))] += 1
    return rows, torch.tensor(weights)


def loop_mix(rows: Tensor, models: Tensor) -> list[list[float]]:
    return [
        [sum(float(r[j]) * float(models[j, k]) for j in range(len(models))) for k in range(models.shape[1])]
        for r in rows
    ]


def tolerance(models: Tensor) -> float:
    """Rounding of a sum of products in float32, in units of its largest term."""
    return 1e-6 * max(1.0, float(models.abs().max())) * len(models)


@settings(max_examples=60, deadline=None)
@given(banks(), st.integers(0, 1000))
def test_mixing_and_products_are_those_of_a_loop(drawn: tuple[Tensor, Tensor], seed: int) -> None:
    models, _ = drawn
    rows = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(len(models)), size=3))
    mixed = bank.mix(rows, models)
    assert mixed.dtype == models.dtype
    np.testing.assert_allclose(mixed.double().numpy(), loop_mix(rows, models), rtol=0, atol=tolerance(models))
    one = bank.mix(rows[0], models)
    np.testing.assert_allclose(one.double().numpy(), loop_mix(rows[:1], models)[0], rtol=0, atol=tolerance(models))
    inner = [[sum(float(a) * float(b) for a, b in zip(v, w, strict=True)) for w in models] for v in models]
    scale = max(1.0, float(models.double().square().sum(1).max()))
    np.testing.assert_allclose(bank.inner(models, models).double().numpy(), inner, rtol=0, atol=1e-5 * scale)


@settings(max_examples=60, deadline=None)
@given(banks())
def test_the_mean_is_that_of_a_loop_and_stays_between_the_rows(drawn: tuple[Tensor, Tensor]) -> None:
    models, weights = drawn
    total = float(weights.sum())
    mean = bank.mean(models, weights)
    (sums,) = loop_mix(weights[None].double(), models)
    near = 1e-7 * float(models.abs().max()) + 1e-30
    np.testing.assert_allclose(mean.double().numpy(), [value / total for value in sums], rtol=1e-6, atol=near)
    held = models[weights > 0]
    slack = 1e-6 * held.abs().amax(0)
    assert bool((mean >= held.amin(0) - slack).all())
    assert bool((mean <= held.amax(0) + slack).all())


def test_the_mean_of_alike_rows_is_the_row_to_the_last_bit() -> None:
    row = torch.tensor([0.1, -3.7, 1e-12, 5e8])
    assert torch.equal(bank.mean(row.repeat(7, 1), torch.tensor([3, 1, 4, 1, 5, 9, 2])), row)


LOPSIDED = torch.tensor([
    [-8.9511e-03, 2.1131e-01, 8.8207e-02, 5.4928e-03], [0.0] * 4, [-4.5873e-07, -1.6514e-06, 3.0221e-07, -9.2049e-07],
    [0.0] * 4, [-8.9511e-03, 2.1131e-01, 8.8207e-02, 5.4928e-03],
])  # fmt: skip


@settings(max_examples=60, deadline=None)
@example((LOPSIDED, torch.ones(5)))
@given(banks())
def test_distances_are_those_of_a_loop_and_never_negative(drawn: tuple[Tensor, Tensor]) -> None:
    models, _ = drawn
    distances = bank.squared_distances(models)
    loop = [[float((a.double() - b.double()).square().sum()) for b in models] for a in models]
    scale = max(1e-30, float(models.double().square().sum(1).max()))
    np.testing.assert_allclose(distances.numpy(), loop, rtol=0, atol=1e-13 * scale)
    assert bool((distances >= 0).all())
    assert torch.equal(distances, distances.T)
    assert float(distances.diagonal().abs().max()) == 0


def test_nearly_alike_rows_have_no_negative_distance() -> None:
    """By squares and products, rounding would leave many of these below zero."""
    rng = torch.Generator().manual_seed(0)
    rows = 100 * torch.randn(1, 200, generator=rng, dtype=torch.float64)
    rows = rows + 1e-8 * torch.randn(30, 200, generator=rng, dtype=torch.float64)
    gram = rows @ rows.T
    assert bool((gram.diagonal()[:, None] + gram.diagonal() - 2 * gram < 0).any())
    assert bool((bank.squared_distances(rows) >= 0).all())


@settings(max_examples=60, deadline=None)
@given(banks(), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_does_not_matter(drawn: tuple[Tensor, Tensor], random) -> None:  # type: ignore[no-untyped-def]
    models, weights = drawn
    order = list(range(len(models)))
    random.shuffle(order)
    near = {"rtol": 1e-6, "atol": 1e-6 * max(1.0, float(models.abs().max()))}
    torch.testing.assert_close(bank.mean(models[order], weights[order]), bank.mean(models, weights), **near)
    shares = weights / weights.sum()
    torch.testing.assert_close(bank.mix(shares[order], models[order]), bank.mix(shares, models), **near)
    distances, shuffled = bank.squared_distances(models), bank.squared_distances(models[order])
    torch.testing.assert_close(
        shuffled, distances[order][:, order], rtol=0, atol=1e-13 * max(1e-30, float(models.double().square().sum()))
    )


def test_products_of_vectors_with_the_bank_are_rows() -> None:
    models = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert bank.inner(torch.tensor([1.0, 10.0]), models).tolist() == [21, 43, 65]
    assert bank.mix(torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64), models).tolist() == [3, 4]
    assert bank.mean(models, torch.tensor([1, 0, 3])).tolist() == pytest.approx([4, 5])


def test_a_product_in_blocks_of_rows_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    rows, models = torch.randn(11, 5, generator=random), torch.randn(5, 70, generator=random)
    whole, products = bank.mix(rows, models), bank.inner(models.T.contiguous(), rows)
    monkeypatch.setattr(bank, "ROWS", 3)
    torch.testing.assert_close(bank.mix(rows, models), whole)
    torch.testing.assert_close(bank.inner(models.T.contiguous(), rows), products)
    assert torch.equal(bank.mix(rows, models)[9:], rows[9:] @ models)


@pytest.mark.parametrize(("rows", "makers"), [(1000, 3), (1025, 2), (300, 4), (256, 2)])
def test_the_rows_of_a_product_are_parted_in_whole_blocks(rows: int, makers: int) -> None:
    parts = bank.shares(rows, makers)
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    assert all(part.start % bank.ROWS == 0 for part in parts if part.start < rows)
    assert len(parts) == makers


def test_a_mean_in_blocks_is_the_mean() -> None:
    rows = torch.randn(7, 2 * bank.BLOCK + 3, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(1, 8)
    shares = weights.double() / 28
    assert torch.equal(bank.mean(rows, weights), (shares @ rows.double()).float())


def test_a_bank_of_which_every_row_is_replaced_is_what_replaces_it() -> None:
    old, new = torch.zeros(3, 2), torch.ones(3, 2)
    assert bank.replace(old, [0, 1, 2], new) is new
    assert old.tolist() == [[0, 0]] * 3
    assert bank.replace(old, [2, 0], torch.tensor([[2.0, 2.0], [1.0, 1.0]])) is old
    assert old.tolist() == [[1, 1], [0, 0], [2, 2]]
