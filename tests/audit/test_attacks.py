"""The attacks find leaks that were planted, and nothing where there is nothing."""

import numpy as np
import pytest
import torch

from fedgraft.audit.eavesdrop import Exchange
from fedgraft.audit.labels import _Ridge, from_bias
from fedgraft.audit.membership import by_loss, by_shadows, confidence, fitted, rebuilt
from fedgraft.audit.verdict import area
from fedgraft.core.message import Message
from fedgraft.methods import METHODS
from fedgraft.testing import blobs, specification


def test_confidence_is_the_logit_of_the_class_s_probability() -> None:
    logits, labels = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]]), torch.tensor([1, 2])
    p = torch.softmax(logits.double(), dim=1)[torch.arange(2), labels]
    np.testing.assert_allclose(confidence(logits, labels), torch.log(p / (1 - p)))
    np.testing.assert_allclose(by_loss(logits, labels), torch.log(p))


def test_confidence_stays_finite_where_the_model_is_sure() -> None:
    assert confidence(torch.tensor([[500.0, -500.0]]), torch.tensor([0])) == pytest.approx(1000)


def test_scores_by_shadows_are_deviations_above_models_that_did_not_see_a_sample() -> None:
    """Sample 0 is out of shadows 0 and 1, sample 1 of 1 and 2, sample 2 of none."""
    said = [np.array([1.0, 9.0, 0.0]), np.array([3.0, 4.0, 0.0]), np.array([9.0, 8.0, 0.0])]
    out = [torch.tensor([True, False, False]), torch.tensor([True, True, False]), torch.tensor([False, True, False])]
    # means 2 and 6; deviations -1, 1, -2, 2 with two degrees of freedom: sqrt(10 / 2)
    found = by_shadows(np.array([4.0, 6.0, 5.0]), said, out)
    np.testing.assert_allclose(found[:2], [2 / np.sqrt(5), 0.0])
    assert not np.isfinite(found[2])


def test_hard_samples_hide_from_the_loss_and_not_from_shadows() -> None:
    rng = np.random.default_rng(0)
    hard = 10 * rng.standard_normal(400)  # how confident any model is about a sample
    member = np.arange(400) < 200
    observed = hard + member + 0.1 * rng.standard_normal(400)
    said = [hard + 0.1 * rng.standard_normal(400) for _ in range(4)]
    scores = by_shadows(observed, said, [torch.ones(400, dtype=torch.bool)] * 4)
    assert area(scores[member], scores[~member]).value > 0.99
    assert area(observed[member], observed[~member]).value < 0.65


@pytest.mark.slow
def test_an_attacker_s_head_separates_what_can_be_separated() -> None:
    centres = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]])
    labels = torch.arange(60) % 3
    features = centres[labels] + 0.1 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    weights = fitted(features, labels, 3)
    assert torch.equal((features @ weights[:-1] + weights[-1]).argmax(dim=1), labels)


@pytest.mark.parametrize(("noise", "told"), [(0.0, True), (100.0, False)])
def test_labels_are_learned_from_updates_that_tell_them(noise: float, told: bool) -> None:
    """Eight clients, of each itself and four shadows; an update is the shares of classes, turned, and noise."""
    rng = np.random.default_rng(0)
    mine = rng.dirichlet([0.3] * 4, size=8)
    known = np.concatenate([0.9 * mine + 0.1 * rng.dirichlet([1.0] * 4, size=8) for _ in range(4)])
    turn = rng.standard_normal((4, 30))
    updates = np.concatenate([mine, known]) @ turn
    updates += noise * rng.standard_normal(updates.shape)
    ridge = _Ridge(updates, np.tile(np.arange(8), 5), 8, known)
    guesses = [ridge.guess(client) for client in range(8)]
    errors = [np.abs(guess - mine[client]).sum() / 2 for client, guess in enumerate(guesses)]
    priors = [np.abs(known.mean(axis=0) - each).sum() / 2 for each in mine]
    assert bool(np.mean(errors) < 0.2 * np.mean(priors)) is told
    for guess in guesses:
        assert guess.min() >= 0
        assert guess.sum() == pytest.approx(1)


def test_the_bias_tells_how_many_samples_of_each_class_there_are() -> None:
    """A step moves the bias by what is there less what was said, and the class that is missing fixes the rate."""
    there, said = np.array([0.7, 0.3, 0.0]), np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(from_bias(0.05 * (there - said), said), there)
    np.testing.assert_allclose(from_bias(np.zeros(3), said), said)


@pytest.mark.parametrize(
    ("method", "entries", "part"),
    [
        ("fedavg", ("weights",), "all"), ("apple", ("core",), "all"), ("fedper", ("weights",), "extractor"),
        ("fedgpa", ("extractor", "head"), "all"), ("scaffold", ("delta_y",), "all"), ("pfedhn", ("change",), "all"),
        ("lg-fedavg", ("weights",), None), ("fedproto", ("prototypes",), None),
    ],
)  # fmt: skip
def test_the_server_makes_a_network_of_what_it_gets(method: str, entries: tuple[str, ...], part: str | None) -> None:
    spec, kind = specification(blobs(), rounds=1), METHODS.make(method)
    layout, buffers = spec.layout(0), spec.settings.buffers
    before, after = spec.initial(0), spec.initial(0) + torch.arange(float(layout.size))
    shared = "head" if method == "lg-fedavg" else kind.shared()

    def sent(entry: str) -> torch.Tensor:
        if entry in ("extractor", "head"):
            return layout.take(after, entry, buffers)  # type: ignore[arg-type]
        if entry in ("delta_y", "change"):
            return (after - before if entry == "delta_y" else before - after)[layout.span("all")]
        return layout.take(after, shared, buffers)

    reply = Message(**{entry: sent(entry) for entry in entries})
    found = rebuilt(kind, spec, 0, Exchange(0, Message(weights=layout.take(before, "all", buffers)), reply))
    if part is None:
        assert found is None
    else:
        assert found is not None
        weights, told = found
        assert told == part
        torch.testing.assert_close(layout.take(weights, told, buffers), layout.take(after, told, buffers))
