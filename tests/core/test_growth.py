"""What a server keeps is known before so much is asked of the machine."""

from dataclasses import replace

import pytest
from conftest import blobs, simulate, specification

from fedgraft.base import memory
from fedgraft.base.errors import UserError
from fedgraft.core.growth import MANY, Growth, held, insist_on_room
from fedgraft.core.spec import Spec
from fedgraft.methods import METHODS


def crowd(clients: int) -> Spec:
    spec = specification(blobs())
    return replace(spec, samples=(7,) * clients, assignment=(0,) * clients, names=())


def weights(spec: Spec) -> int:
    return spec.layout(0).width("all", spec.settings.buffers) * 4


@pytest.mark.parametrize("name", METHODS)
def test_what_a_few_clients_show_holds_for_more(name: str) -> None:
    method = METHODS.make(name)
    assert Growth.of(method, crowd(4)).at(40) == held(method, crowd(40))


@pytest.mark.parametrize("name", METHODS)
def test_rounds_add_nothing_that_was_not_foreseen(name: str) -> None:
    method, fed = METHODS.make(name), blobs()
    spec = specification(fed, rounds=2, epochs=1)
    _, server, _ = simulate(method, fed, spec, evaluate_every=9)
    kept = sum(tensor.numel() * tensor.element_size() for tensor in server.values())
    foreseen = Growth.of(method, spec).at(spec.clients)
    assert kept <= foreseen + weights(spec), "more than one vector like a model came with the rounds"


def test_known_orders() -> None:
    spec = crowd(4)
    growth = {name: Growth.of(METHODS.make(name), spec) for name in ("fedavg", "fedapa", "apple")}
    assert (growth["fedavg"].order, growth["fedavg"].itself) == ("O(1)", weights(spec))
    assert growth["fedapa"].order == "O(clients^2)"
    assert growth["fedapa"].pair == 2 * 4, "two matrices of 4-byte numbers"
    assert growth["apple"].order == "O(clients^2)", "every client's model, and who was sent which"
    assert growth["apple"].each >= weights(spec)


def test_a_server_that_cannot_fit_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda: 2**20)
    with pytest.raises(UserError, match=r"fedapa grows with O\(clients\^2\): for 500 clients it would keep .* GiB"):
        insist_on_room(METHODS.make("fedapa"), crowd(MANY))
    insist_on_room(METHODS.make("fedavg"), crowd(MANY))
