"""Mixing weights of the methods: finite, never negative, summing to one, whatever the clients bring."""

import numpy as np
import torch
from conftest import blobs, specification
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgraft.core import simplex
from fedgraft.core.message import Message
from fedgraft.methods.fedamp import FedAMP
from fedgraft.methods.fedapa import FedAPA
from fedgraft.methods.fedgpa import FedGPA
from fedgraft.methods.fedpac import FedPAC
from fedgraft.methods.heurfedamp import HeurFedAMP

EXTREMES = st.sampled_from([0.0, -0.0, 1e-38, -1e-38, 1e-6, 1.0, -1.0, 0.3, 1e6, -1e6, 1e9, -1e9])


def assert_on_the_simplex(rows: Tensor) -> None:
    assert bool(torch.isfinite(rows).all()), rows
    assert bool((rows >= 0).all()), rows
    np.testing.assert_allclose(rows.double().sum(-1).numpy(), 1, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(EXTREMES, st.floats(-(2.0**99), 2.0**99, width=32)), min_size=1, max_size=6),
    st.data(),
    st.sampled_from([0.0, 1e-6, 0.5, 1.0]),
)
def test_fedapas_rows(row: list[float], data: st.DataObject, mu: float) -> None:
    client = data.draw(st.integers(0, len(row) - 1))
    assert_on_the_simplex(FedAPA(mu=mu).settle(torch.tensor(row), client))


@settings(max_examples=40, deadline=None)
@given(st.lists(EXTREMES, min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 100))
def test_fedapas_matrix_after_uploads_of_any_size(scales: list[float], mu: float, eta: float) -> None:
    method, spec = FedAPA(mu=mu, eta=eta), specification(blobs())
    server = method.setup(spec)
    for sign in (1, -1):
        inbox = {c: Message(weights=server["bank"][c] + sign * scale) for c, scale in enumerate(scales)}
        method.merge(server, inbox)
        assert_on_the_simplex(server["A"])
        assert bool(torch.isfinite(torch.stack([method.send(server, c)["weights"] for c in range(4)])).all())


@st.composite
def statistics(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, class means and variances of some clients: alike, far apart, without samples of a class."""
    clients, classes, width = draw(st.integers(1, 5)), draw(st.integers(1, 4)), 3
    counts = torch.tensor(
        draw(
            st.lists(
                st.lists(st.integers(0, 9), min_size=classes, max_size=classes), min_size=clients, max_size=clients
            )
        )
    )
    counts[:, 0] += counts.sum(1) == 0
    means = torch.tensor(
        draw(st.lists(EXTREMES, min_size=clients * classes * width, max_size=clients * classes * width))
    ).view(clients, classes, width)
    means[counts == 0] = 0
    if draw(st.booleans()):
        means[-1], counts[-1] = means[0], counts[0]
    variances = torch.tensor(draw(st.lists(EXTREMES.map(abs), min_size=clients, max_size=clients)))
    return counts, means, variances


@settings(max_examples=150, deadline=None)
@given(
    statistics(), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from(["zero", "skip"]), st.sampled_from([0.0, 1e-3, 0.9])
)
def test_fedgpas_and_fedpacs_rows(
    drawn: tuple[Tensor, Tensor, Tensor], mu: float, missing: str, threshold: float
) -> None:
    counts, means, variances = drawn
    n = counts.sum(1).double()
    fedgpa = FedGPA(mu=mu, missing=missing, threshold=threshold)  # type: ignore[arg-type]
    assert_on_the_simplex(fedgpa.extractor_weights(counts, means, n))
    assert_on_the_simplex(fedgpa.classifier_weights(counts, means, variances))
    assert_on_the_simplex(FedPAC(threshold=threshold).classifier_weights(counts, means, variances))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(EXTREMES, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from([0.1, 25.0, 1e4]))
def test_message_passing_rows(models: list[list[float]], sigma: float) -> None:
    W = torch.tensor(models)
    assert_on_the_simplex(FedAMP(sigma=sigma).attention(W, alpha=sigma))
    assert_on_the_simplex(HeurFedAMP(sigma=sigma).attention(W, alpha=1.0))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_solver_always_answers_on_the_simplex(data: st.DataObject) -> None:
    """Also for matrices that are singular, not definite, or not finite: then with its fallback."""
    n = data.draw(st.integers(1, 5))
    strange = st.one_of(EXTREMES, st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e300, -1e300]))
    X = torch.tensor(data.draw(st.lists(strange, min_size=n * n, max_size=n * n)), dtype=torch.float64).view(n, n)
    Q = X @ X.T if data.draw(st.booleans()) else X + X.T
    fallback = torch.full((1, n), 1 / n, dtype=torch.float64)
    assert_on_the_simplex(simplex.minimise(Q[None], fallback))
