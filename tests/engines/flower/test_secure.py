"""Secure aggregation: the server gets sums alone, also when sites are lost, and both engines end in the same bits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import a_few_first
from flwr.app import ArrayRecord, Context, Message

from fedgraft.base.errors import UserError
from fedgraft.core.message import Message as Reply
from fedgraft.core.method import Server
from fedgraft.core.secure import Secure
from fedgraft.data.federation import Federation
from fedgraft.engines.flower import masking
from fedgraft.engines.flower.masking import Keys, MaskError
from fedgraft.methods import METHODS
from fedgraft.runs.run import Run, run
from trials.federated import FAST, Federated, Handler

SETTINGS: dict[str, Any] = {
    "model": "mlp:5", "rounds": 2,
    "training": {"lr": 0.1, "momentum": 0.5, "epochs": 1, "batch_size": 4, "stages": ["secure"]},
}  # fmt: skip
SUMS = [name for name in METHODS if METHODS.make(name).sums()]


def test_which_methods_need_no_more_than_a_sum() -> None:
    assert {"fedavg", "fedper", "fedrep", "fedbabu", "fedprox", "ditto", "apfl", "lg-fedavg", "scaffold"} <= set(SUMS)
    assert not {"fedapa", "apple", "fedgpa", "fedpac", "fedproto", "ifca", "fedas", "fedamp"} & set(SUMS)


@pytest.mark.parametrize("name", a_few_first(SUMS))
def test_the_mean_in_everybodys_place_is_as_good_as_the_replies(name: str, fed: Federation) -> None:
    """What ``sums`` claims: the server ends where it would with the replies themselves, up to the stated rounding."""
    secure = run(name, fed, workers=1, **SETTINGS)
    training = {key: value for key, value in SETTINGS["training"].items() if key != "stages"}
    plain = run(name, fed, workers=1, **{**SETTINGS, "training": training})
    assert secure.server is not None
    assert plain.server is not None
    assert secure.server.keys() == plain.server.keys()
    for entry, tensor in plain.server.items():
        if tensor.is_floating_point():
            assert torch.allclose(secure.server[entry], tensor, rtol=0, atol=2e-6), entry


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(SUMS) - {"local"}))
def test_methods_that_need_single_replies_are_refused_by_name(name: str, fed: Federation) -> None:
    with pytest.raises(UserError, match=rf"{METHODS.make(name).name.replace('+', '.')} (needs what each|.*classes)"):
        run(name, fed, workers=1, **SETTINGS)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "lg-fedavg", "dbe"])
def test_same_bits_as_on_one_machine(name: str, fed: Federation, tmp_path: Path) -> None:
    local = run(name, fed, workers=1, **SETTINGS)
    done = Federated(tmp_path, fed, {"method": name, **SETTINGS}).serve()
    same(done, local)


def same(done: Run, other: Run) -> None:
    assert done.server is not None
    assert other.server is not None
    for entry, tensor in other.server.items():
        assert torch.equal(done.server[entry], tensor), entry


def overheard(federated: Federated, letters: list[Message]) -> None:
    """Write down every letter that a site sends."""

    def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        letters.append(reply)
        return [reply]

    for node in federated.grid.nodes.values():
        node.meddle = meddle


def uploads(letters: list[Message]) -> list[np.ndarray[Any, Any]]:
    """The arrays of numbers in letters."""
    held = [letter.content.get("message") for letter in letters if letter.has_content()]
    return [array.numpy() for record in held if isinstance(record, ArrayRecord) for array in record.values()]


def test_nothing_that_the_server_gets_tells_of_one_site(fed: Federation, tmp_path: Path) -> None:
    """Every byte that arrives: masked uploads look like chance, and the plain ones are nowhere in it."""
    letters: list[Message] = []
    federated = Federated(tmp_path, fed, {"method": "fedavg", **SETTINGS, "rounds": 1})
    overheard(federated, letters)
    federated.serve()
    masked = uploads(letters)
    assert len(masked) == len(fed)
    plain = [federated.state(name)["own"] for name in federated.names]
    for row, weights in zip(masked, plain, strict=True):
        assert row.dtype == np.int64
        whole = np.round(weights.double().numpy() * 2**28).astype(np.int64)
        for weight in range(1, 60):
            assert not np.isin(row, whole * weight).any()
        spread = np.abs(row.astype(float)).mean() / 2**63  # of numbers drawn evenly from all that 64 bits hold: a half
        assert 0.3 < spread < 0.7
    wire = b"".join(np.ascontiguousarray(row).tobytes() for row in masked)
    assert all(weights.numpy().tobytes()[:32] not in wire for weights in plain)


def losing(federated: Federated, lost: set[str], when: str) -> None:
    """Let sites answer nothing from some kind of letter on."""

    def made(silent: bool) -> Callable[[Message, Handler, Context], list[Message]]:
        def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
            reply = app(message, context)
            return [] if silent and message.metadata.message_type in when.split() else [reply]

        return meddle

    for name, node in zip(federated.names, federated.grid.nodes.values(), strict=True):
        node.meddle = made(name in lost)


@pytest.mark.parametrize("when", ["query.keys", "query.shares", "train", "train query.unmask", "query.unmask"])
def test_the_sum_is_right_without_those_who_are_lost(when: str, many: Federation, tmp_path: Path) -> None:
    """Three of ten sites are lost in the middle of a round: the sum is that of the others."""
    settings = {**SETTINGS, "rounds": 1}
    federated = Federated(tmp_path, many, {"method": "fedavg", **settings}, replace(FAST, deadline=0.5))
    lost = {"b", "e", "j"}
    losing(federated, lost, when)
    done = federated.serve()
    kept = [c for c, name in enumerate(federated.names) if name not in lost or when == "query.unmask"]
    weights = torch.tensor([len(many.clients[client].train) for client in kept], dtype=torch.float64)
    trained = torch.stack([federated.state(federated.names[client])["own"].double() for client in kept])
    expected = (weights[:, None] * trained).sum(0) / weights.sum()
    assert done.server is not None
    found = done.server["weights/0"].double()
    assert torch.allclose(found, expected, rtol=2**-24, atol=2**-27)  # float32 rounds the mean once more
    assert len(done.records[0]["refused"]) == len(many) - len(kept)


def test_too_few_sites_hide_nobody(many: Federation, tmp_path: Path) -> None:
    federated = Federated(tmp_path, many, {"method": "fedavg", **SETTINGS, "rounds": 1}, replace(FAST, deadline=0.3))
    losing(federated, set("abcde"), "train")
    with pytest.raises(UserError, match="5 of 10 sites are left, and it takes 6"):
        federated.serve()


@pytest.fixture(scope="module")
def many() -> Federation:
    from fedgraft.data.federation import Site, own_data

    rng = np.random.default_rng(0)

    def site(name: str, count: int) -> Site:
        x = rng.normal(size=(count + 4, 6)).astype(np.float32)
        y = np.arange(count + 4) % 3
        return Site(x[:count], y[:count], x[count:], y[count:], name=name)

    return own_data([site(chr(ord("a") + number), 6 + number) for number in range(10)])


# ---- the parts


def drawn(count: int) -> dict[int, Keys]:
    return {client: Keys.drawn() for client in range(count)}


def test_masks_cancel() -> None:
    keys, numbers = drawn(4), {client: np.arange(5, dtype=np.int64) * (client + 1) for client in range(4)}
    publics = {client: each.public for client, each in keys.items()}
    rows = {client: masking.masked(numbers[client], client, keys[client], publics, b"wave") for client in keys}
    total = sum(rows.values()) - sum(masking.lone(each.seed, 5) for each in keys.values())
    assert np.asarray(total).tolist() == [0, 10, 20, 30, 40]
    other = masking.masked(numbers[0], 0, keys[0], publics, b"another wave")
    assert not np.isin(other, rows[0]).any()


def test_a_secret_is_rebuilt_from_enough_shares_and_from_no_fewer() -> None:
    keys = Keys.drawn()
    shares = masking.split(keys, [2, 5, 7, 9], 3)
    seeds = {client: each.seed for client, each in shares.items()}
    assert masking.rebuilt({c: seeds[c] for c in (2, 7, 9)}, [2, 5, 7, 9], 3) == keys.seed
    assert masking.rebuilt({c: shares[c].mask for c in (5, 7, 9)}, [2, 5, 7, 9], 3) == keys.mask
    with pytest.raises(MaskError, match="too few"):
        masking.rebuilt({c: seeds[c] for c in (2, 7)}, [2, 5, 7, 9], 3)


def test_sealed_shares_are_for_one_site() -> None:
    keys = drawn(3)
    publics = {client: each.public for client, each in keys.items()}
    shares = masking.split(keys[0], keys, 2)[1]
    box = masking.sealed(shares, 0, keys[0].seal, 1, publics[1], b"wave")
    assert masking.opened(box, 0, publics[0], 1, keys[1].seal, b"wave") == shares
    for reader, sender, context in ((2, 0, b"wave"), (1, 2, b"wave"), (1, 0, b"other")):
        with pytest.raises(MaskError, match="cannot be opened"):
            masking.opened(box, sender, publics[sender], reader, keys[reader].seal, context)


def test_rounding_is_as_stated() -> None:
    stage = Secure(bits=10)
    sent = Reply(weights=torch.tensor([0.1, -3.0, 1e-5]))
    back = stage.decode(stage.encode(sent, {}, {}), {})
    assert float((back["weights"] - sent["weights"]).abs().max()) <= 2**-11
    # 3 * 0.5 + 1 * 0.25 over 4: 0.4375
    replies = {0: Reply(w=torch.tensor([0.5])), 1: Reply(w=torch.tensor([0.25]))}
    coded = {client: stage.encode(reply, {}, {}) for client, reply in replies.items()}
    gathered = stage.gather(coded, {0: 3, 1: 1})
    assert stage.decode(gathered[0], {})["w"].tolist() == [0.4375]
    assert gathered[0] is gathered[1]


def test_a_reply_that_is_not_finite_is_refused_and_the_others_are_added(fed: Federation) -> None:
    from fedgraft.methods.fedavg import FedAvg

    class Broken(FedAvg):
        name = "broken"

        def reply(self, client: Any, received: Any, trained: Any) -> Reply:
            return Reply(weights=trained * (torch.nan if client.id == 1 else 1))

    done = run(Broken(), fed, workers=1, **SETTINGS)
    assert [refusal["client"] for refusal in done.records[0]["refused"]] == [1]
    assert "cannot be added to the others" in done.records[0]["refused"][0]["reason"]
    assert isinstance(done.server, Server)


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (["secure", "int8"], "cannot add up what int8 made of replies"),
        (["secure", "median"], "cannot add up what median made of replies"),
        (["secure:bits=3"], "8 to 40 bits"),
        (["secure:answering=0.4"], "more than half"),
    ],
)
def test_wrong_turns(stages: list[str], sentence: str, fed: Federation) -> None:
    settings = {**SETTINGS, "training": {**SETTINGS["training"], "stages": stages}}
    with pytest.raises(UserError, match=sentence):
        run("fedavg", fed, workers=1, **settings)
