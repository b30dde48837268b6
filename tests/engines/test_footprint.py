"""What a worker needs of its device: counted while one client does a step, beside sums worked out by hand."""

from typing import Any

import pytest
import torch

import fedgraft as fg
from fedgraft.engines.footprint import CONTEXT, SLACK, Footprint, Ledger, footprint
from fedgraft.methods import METHODS
from fedgraft.runs.config import configure
from fedgraft.runs.run import plan


def test_the_ledger_counts_what_lives_at_one_time() -> None:
    before = torch.zeros(1000)
    with Ledger() as ledger:
        first = before + 1  # 4000 bytes
        view = first[10:]
        before[10:].add_(1)  # nothing is made
        del first
        assert (ledger.now, ledger.peak) == (4000, 4000), "a view holds what it looks at"
        second = view.double()  # 8 * 990 bytes
        del view
        assert (ledger.now, ledger.peak) == (7920, 11920)
        del second
    assert ledger.now == 0


def test_need_adds_what_cuda_takes_for_itself() -> None:
    found = Footprint(weights=400, gradients=400, optimizer=400, besides=800)
    assert found.need == CONTEXT + round(SLACK * 2000)
    assert "weights 400, gradients 400, optimizer 400, besides 800" in str(found)


def need(method: str = "fedavg", **settings: Any) -> Footprint:
    given: dict[str, Any] = {"clients": 2, "partition": "iid", "model": "mlp:256", "kernels": "torch", **settings}
    fed = fg.federate("digits", 2, "iid")
    run = plan(METHODS.make(method), fed, configure(given), None, given=True)
    return footprint(run.method, run.spec, fed.clients)


def test_parts_that_can_be_worked_out_by_hand() -> None:
    parameters = 64 * 256 + 256 + 256 * 10 + 10
    found = need()
    assert (found.weights, found.gradients, found.optimizer) == (4 * parameters,) * 3
    assert need(momentum=0.0).optimizer == 0
    assert need(optimizer="adam", momentum=0.0).optimizer == 3 * 4 * parameters
    assert found.besides >= 4 * parameters, "the client's message, at least, is there too"


def test_activations_grow_with_the_batch() -> None:
    """A sample of a batch is 64 inputs; the hidden layer keeps 256 numbers of it, before or after the ReLU."""
    more = need(batch_size=640).besides - need(batch_size=320).besides
    assert more >= 320 * 4 * (64 + 256)


@pytest.mark.parametrize("method", ["ditto", "fedapa", "scaffold", "moon", "fedrep", "fedppa"])
def test_a_method_that_holds_more_needs_more(method: str) -> None:
    plain, found = need(model="mlp:64"), need(method, model="mlp:64")
    assert found.tensors > 0
    if method in ("ditto", "scaffold", "moon"):  # a twin, control variates, two teachers
        assert found.tensors >= plain.tensors + plain.weights


def test_noised_training_is_rehearsed_too() -> None:
    assert need(epsilon=3.0, model="mlp:64").tensors > 0
