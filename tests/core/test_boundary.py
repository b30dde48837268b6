"""Hostile or broken clients: what reaches the server is refused, named and counted, and the state stays finite."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HOSTILE, Outcomes, Wire, blobs, classified, specification
from torch import Tensor

import fedgraft
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import POINTS, Point, Score, Scores, Summary
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.samples import ClientData
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs.run import Run


def attacked(
    method: Method,
    fed: Federation,
    spec: Spec,
    forge: Callable[[int, Outcomes], Outcomes],
    *,
    share: float = 1.0,
    evaluate_every: int = 100,
) -> tuple[list[Round], Server]:
    server, engine = method.setup(spec), Wire(method, spec, fed.clients)
    engine.forge = forge
    return list(rounds(method, server, engine, Participation(share, share), evaluate_every=evaluate_every)), server


def replying(**fields: Any) -> Callable[[int, Outcomes], Outcomes]:
    """Let the hostile client answer with other fields, each a tensor or a change of the honest one."""

    def forge(_: int, outcomes: Outcomes) -> Outcomes:
        honest = outcomes.get(HOSTILE)
        if not isinstance(honest, Outcome):
            return outcomes
        forged = {n: fields[n](t) if callable(fields.get(n)) else fields.get(n, t) for n, t in honest.reply.items()}
        return {**outcomes, HOSTILE: replace(honest, reply=Message(**forged))}

    return forge


# who answers, and to what


def test_strangers_and_the_unasked_are_refused_and_change_nothing(fed: Federation) -> None:
    spec = specification(fed)
    quiet, honest = attacked(FedAvg(), fed, spec, lambda _, outcomes: outcomes, share=0.5)

    def crowd(_: int, outcomes: Outcomes) -> Outcomes:
        some = next(iter(outcomes.values()))
        return dict.fromkeys((*range(6), -1), some) | outcomes

    done, server = attacked(FedAvg(), fed, spec, crowd, share=0.5)
    assert torch.equal(server["weights/0"], honest["weights/0"])
    for this, calm in zip(done, quiet, strict=True):
        assert this.loss == calm.loss
        reasons = {refusal.client: refusal.reason for refusal in this.refused}
        assert reasons.keys() == {*range(6), -1} - set(this.participants)
        for client, reason in reasons.items():
            who = "a client that was not asked" if client in range(4) else "somebody who is no client"
            assert reason == f"fedavg, round {this.number + 1}: the reply comes from {who}"


def test_a_reply_to_an_older_round_is_refused(fed: Federation) -> None:
    kept: Outcomes = {}

    def late(round: int, outcomes: Outcomes) -> Outcomes:
        kept.setdefault(HOSTILE, outcomes[HOSTILE])
        return outcomes | kept

    done, _ = attacked(FedAvg(), fed, specification(fed), late)
    assert [len(this.refused) for this in done] == [0, 1, 1]
    assert done[2].refused[0].client == HOSTILE
    assert done[2].refused[0].reason == "fedavg, round 3: the reply belongs to round 1"


def test_a_client_that_does_not_answer_is_absent_and_named(fed: Federation) -> None:
    def swallow(_: int, outcomes: Outcomes) -> Outcomes:
        del outcomes[HOSTILE]
        return outcomes

    done, _ = attacked(FedAvg(), fed, specification(fed, rounds=1), swallow)
    assert [(r.client, r.reason) for r in done[0].refused] == [(1, "fedavg, round 1: the client gave no answer")]


# what it says


def test_absurd_norms_are_refused_by_a_bound_that_the_run_sets(fed: Federation) -> None:
    large = replying(weights=lambda w: 2e9 * w / w.norm())
    done, server = attacked(FedAvg(), fed, specification(fed, rounds=1), large)
    assert "'weights' has norm 2e+09, above bound:norm=1e+09" in done[0].refused[0].reason
    assert float(server["weights/0"].norm()) < 100
    done, _ = attacked(FedAvg(), fed, specification(fed, rounds=1, stages=("bound:norm=1e10,factor=0",)), large)
    assert not done[0].refused
    done, _ = attacked(
        FedAvg(), fed, specification(fed, rounds=1, stages=("bound:norm=0.5",)), lambda _, outcomes: outcomes
    )
    assert [refusal.client for refusal in done[0].refused] == [0, 1, 2, 3], "the bound is for everybody"


def test_a_gigantic_reply_is_refused_without_being_copied(fed: Federation) -> None:
    endless = torch.zeros(1).expand(2**44)  # 64 TiB by its shape, four bytes in memory
    done, _ = attacked(FedAvg(), fed, specification(fed, rounds=1), replying(weights=endless))
    assert "has shape [17592186044416], expected [53]" in done[0].refused[0].reason


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_does_not_poison_the_figure(fed: Federation, loss: float) -> None:
    spec = specification(fed, rounds=1)
    told: dict[ClientId, float] = {}

    def forge(_: int, outcomes: Outcomes) -> Outcomes:
        told.update({client: o.loss for client, o in outcomes.items() if isinstance(o, Outcome)})
        honest = outcomes[HOSTILE]
        assert isinstance(honest, Outcome)
        return {**outcomes, HOSTILE: replace(honest, loss=loss)}

    done, _ = attacked(FedAvg(), fed, spec, forge)
    others = [client for client in told if client != HOSTILE]
    weights = [spec.samples[client] for client in others]
    expected = sum(told[c] * w for c, w in zip(others, weights, strict=True)) / sum(weights)
    assert done[0].loss == pytest.approx(expected)
    assert not done[0].refused, "its weights are fine"


COUNTS = {
    "negative": (lambda n: n - 14, "holds values below 0"),
    "too many": (lambda n: n + 1, "sums to"),
    "beyond the samples": (lambda n: torch.full_like(n, 2**62), "holds values above 13"),
    "overflowing": (lambda n: torch.full_like(n, 2**63 - 1), "holds values above 13"),
    "nobody": (torch.zeros_like, "sums to 0, expected 13"),
    "as floats": (lambda n: n.float(), "has dtype float32"),
    "another class": (lambda n: torch.cat([n, n[:1]]), "has shape [4], expected [3]"),
}


@pytest.mark.parametrize("name", ["fedproto", "fedpac", "fedgpa"])
@pytest.mark.parametrize("kind", COUNTS)
def test_counts_have_to_add_up_to_what_the_server_knows(fed: Federation, name: str, kind: str) -> None:
    change, reason = COUNTS[kind]
    done, _ = attacked(METHODS[name](), fed, specification(fed, rounds=1), replying(counts=change))
    assert [refusal.client for refusal in done[0].refused] == [HOSTILE]
    assert f"'counts' {reason}" in done[0].refused[0].reason


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("fedgh", "held", torch.zeros(3, dtype=torch.bool), "sums to 0, expected 1 to 13"),
        ("fedgh", "prototypes", lambda mu: mu / 0, "not finite"),
        ("fedproto", "prototypes", lambda mu: mu[:, 1:], "has shape [3, 4], expected [3, 5]"),
        ("fedproto", "prototypes", lambda mu: torch.full_like(mu, 1e9), "has norm"),
        ("fedpac", "variance", torch.tensor(-1e-3), "holds values below 0"),
        ("fedpac", "variance", torch.tensor(torch.nan), "not finite"),
        ("fedpac", "variance", torch.tensor(1e30), "has norm 1e+30"),
        ("fedas", "fisher", torch.tensor(-1.0, dtype=torch.float64), "holds values below 0"),
        ("fedas", "fisher", torch.tensor(1e300, dtype=torch.float64), "has norm 1e+300"),
        ("fedppa+", "entropy", torch.tensor(-0.1, dtype=torch.float64), "holds values below 0"),
        ("fedppa+", "entropy", torch.tensor(1.1, dtype=torch.float64), "holds values above 1.09861"),
        ("fedfomo", "gains", lambda u: u / 0, "not finite"),
        ("dbe", "mean", lambda m: m * torch.nan, "not finite"),
        ("scaffold", "delta_c", lambda c: c.new_full(c.shape, torch.inf), "not finite"),
        ("pfedhn", "change", lambda c: c[:-1], "has shape"),
        ("apple", "core", lambda w: w.double(), "has dtype float64"),
    ],
)
def test_every_other_kind_of_entry(fed: Federation, name: str, field: str, value: Any, reason: str) -> None:
    done, server = attacked(METHODS[name](), fed, specification(fed, rounds=1), replying(**{field: value}))
    assert {refusal.client for refusal in done[0].refused} == {HOSTILE}
    assert f"{field!r} " in done[0].refused[0].reason
    assert reason in done[0].refused[0].reason
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.values())


def test_ids_that_nobody_has_are_refused(fed: Federation) -> None:
    method = METHODS.make("apple:budget=2")
    for ids in ([0, 4], [-1, 2]):
        done, _ = attacked(method, fed, specification(fed, rounds=1), replying(ids=torch.tensor(ids)))
        assert "'ids' holds values" in done[0].refused[0].reason


def test_one_sample_has_no_entropy_and_one_class() -> None:
    fed = blobs((9, 1))
    entropy = torch.tensor(0.5, dtype=torch.float64)
    done, _ = attacked(METHODS["fedppa+"](), fed, specification(fed, rounds=1), replying(entropy=entropy))
    assert "'entropy' holds values above 1e-09" in done[0].refused[0].reason
    done, _ = attacked(
        METHODS["fedgh"](), fed, specification(fed, rounds=1), replying(held=torch.ones(3, dtype=torch.bool))
    )
    assert "'held' sums to 3, expected 1" in done[0].refused[0].reason


# the largest thing that a hostile client can say


def along(tensor: Tensor, _: int, norm: float) -> Tensor:
    size = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    return tensor * (norm / size) if size else tensor


def ahead(tensor: Tensor, _: int, norm: float) -> Tensor:
    return torch.full_like(tensor, norm / math.sqrt(max(1, tensor.numel())))


def astride(tensor: Tensor, round: int, norm: float) -> Tensor:
    flat = ahead(tensor, round, norm).reshape(-1)
    flat[::2] *= -1 if tensor.dim() else 1
    return flat.reshape(tensor.shape) * ((-1) ** round if tensor.dim() else 1)


@pytest.mark.parametrize("name", METHODS)
def test_the_servers_state_stays_finite_whatever_passes_the_bound(fed: Federation, name: str) -> None:
    method, bound = METHODS[name](), 0.999e9

    def forge(round: int, outcomes: Outcomes) -> Outcomes:
        honest, attack = outcomes.get(HOSTILE), (ahead, astride, along)[round % 3]
        if not isinstance(honest, Outcome):
            return outcomes
        reply = {n: attack(t, round, bound) if t.is_floating_point() else t for n, t in honest.reply.items()}
        return {**outcomes, HOSTILE: replace(honest, reply=Message(**reply))}

    done, server = attacked(
        method, fed, specification(fed, rounds=4, norm=True, epochs=1, stages=("bound:factor=0",)), forge
    )
    assert len(done) == 4
    for key, tensor in server.items():
        assert bool(torch.isfinite(tensor).all()), key
    for client in range(4):
        for key, tensor in method.send(server, client).items():
            assert bool(torch.isfinite(tensor).all()), key


def test_a_server_that_overflows_all_the_same_stops_the_run(fed: Federation) -> None:
    class Squaring(FedAvg):
        def merge(self, server: Server, inbox: Mapping[ClientId, Message]) -> None:
            super().merge(server, inbox)
            server["weights/0"] = (server["weights/0"] * 1e30) ** 2

    with pytest.raises(
        UserError, match=r"fedavg, round 1: .*'weights/0'.* is not finite; .*smaller norm of the stage bound"
    ):
        attacked(Squaring(), fed, specification(fed), lambda _, outcomes: outcomes)


# the figures of a test


def examined(fed: Federation, forge: Callable[[dict[ClientId, Scores]], dict[ClientId, Scores]]) -> Round:
    spec, method = specification(fed, rounds=1), FedAvg()
    server, engine = method.setup(spec), Wire(method, spec, fed.clients)
    engine.forge_scores = forge
    return next(iter(rounds(method, server, engine, Participation())))


@pytest.mark.parametrize(
    "score",
    [
        classified(11, 10, 1.0),
        classified(-1, 10, 1.0),
        classified(0, -10, 1.0),
        classified(6, 10, 1.0, broken=5),
        classified(6, 10, 1.0, -1),
    ],
)
def test_impossible_figures_are_refused_and_the_others_keep_their_places(fed: Federation, score: Score) -> None:
    honest = examined(fed, lambda scores: scores)
    forged = Scores({"received": score, "trained": score})
    this = examined(fed, lambda scores: {**scores, HOSTILE: forged, 7: forged})
    assert [(r.client, r.reason) for r in this.refused] == [
        (1, "fedavg, round 1: the test figures are impossible"),
        (7, "fedavg, round 1: test figures come from somebody who is no client"),
    ]
    mine, true = this.test["trained"].per_client, honest.test["trained"].per_client
    assert [mine[c] for c in (0, 2, 3)] == [true[c] for c in (0, 2, 3)]
    assert math.isnan(mine[HOSTILE])
    assert this.test["trained"].mean == pytest.approx(sum(true[c] for c in (0, 2, 3)) / 3)


def test_a_client_whose_test_failed_is_named(fed: Federation) -> None:
    def swallow(scores: dict[ClientId, Scores]) -> dict[ClientId, Scores]:
        del scores[HOSTILE]
        return scores

    assert "client's model could not be tested" in examined(fed, swallow).refused[0].reason


def test_a_summary_leaves_out_what_is_not_there() -> None:
    scores = {0: classified(1, 4, 2.0), 2: classified(3, 4, math.nan), 3: classified(0, 0, 0.0)}
    metrics = Classification(3).judges()
    summary = Summary.of(scores, 4, metrics)
    assert (summary.mean, summary.pooled, summary.figures["log_loss"].pooled) == (0.5, 0.5, 0.5)
    assert [math.isnan(accuracy) for accuracy in summary.per_client] == [False, True, False, True]
    assert math.isnan(Summary.of({}, 2, metrics).pooled)


# figures that were not agreed on


def told(correct: int = 5, total: int = 10) -> dict[Point, Score]:
    return dict.fromkeys(POINTS, classified(correct, total, 1.0))


@pytest.mark.parametrize("kind", ["validation", "everyone"])
def test_figures_of_a_set_that_nobody_asked_for_are_refused(fed: Federation, kind: str) -> None:
    this = examined(fed, lambda scores: {**scores, HOSTILE: replace(scores[HOSTILE], **{kind: told()})})
    assert [(r.client, r.reason) for r in this.refused] == [
        (HOSTILE, f"fedavg, round 1: there are {kind} figures, which nobody asked for")
    ]
    assert not this.validation
    assert not this.everyone
    assert math.isnan(this.test["trained"].per_client[HOSTILE])


def test_figures_of_no_samples_or_of_different_ones_are_impossible(fed: Federation) -> None:
    for forged in (
        told(0, 0),
        {"received": classified(1, 10, 1.0), "trained": classified(1, 9, 1.0)},
        {"trained": classified(1, 2, 3.0)},
    ):
        this = examined(fed, partial(lambda forged, scores: {**scores, HOSTILE: Scores(forged)}, forged))
        assert this.refused[0].reason == "fedavg, round 1: the test figures are impossible"


def test_a_round_in_which_the_only_figures_are_impossible_goes_on(fed: Federation) -> None:
    this = examined(fed, lambda _: {HOSTILE: Scores(told(0, 0))})
    assert [refusal.client for refusal in this.refused] == [0, 1, 2, 3]
    assert not this.test


def test_a_client_is_tested_on_as_many_samples_as_before(fed: Federation) -> None:
    spec, method, number = specification(fed, rounds=3), FedAvg(), iter(range(3))
    server, engine = method.setup(spec), Wire(method, spec, fed.clients)

    def shrink(scores: dict[ClientId, Scores]) -> dict[ClientId, Scores]:
        return scores | {HOSTILE: Scores(told(1, 2))} if next(number) == 1 else scores

    engine.forge_scores = shrink
    done = list(rounds(method, server, engine, Participation()))
    assert [len(this.refused) for this in done] == [0, 1, 0]
    assert done[1].refused[0].reason == "fedavg, round 2: the test figures are of 2 samples, and were of 10 before"
    assert server.tested == {("test", client): 10 for client in range(4)}


def test_a_client_that_is_too_small_for_validation_may_be_the_only_one_tested() -> None:
    fed = blobs((20, 2, 31, 8))
    whole = own_data([site_of(data) for data in fed.clients], task="classification:3", validation=0.3)
    assert [len(data.validation) for data in whole.clients] == [6, 0, 9, 2]
    this = examined(whole, lambda scores: {1: scores[1]})
    assert [refusal.client for refusal in this.refused] == [0, 2, 3]
    assert this.test["trained"].tested == (0, 10, 0, 0)
    assert not this.validation


def site_of(data: ClientData) -> Site:
    return Site(*(t.numpy() for each in (data.train, data.test) for t in (each.inputs, each.labels)))


def test_a_run_that_was_resumed_remembers_how_many_test_samples_there_were(
    tmp_path: Path, fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = tmp_path / "run"

    class Gone(Exception):  # noqa: N818
        pass

    class Leaving:
        def begin(self, run: Run) -> None: ...

        def end(self, run: Run) -> None: ...

        def round(self, run: Run, this: Round) -> None:
            if this.number == 1:
                raise Gone

    with pytest.raises(Gone):
        fedgraft.run("fedavg", fed, rounds=3, out=interrupted, checkpoint_every=1, workers=1, watchers=[Leaving()])
    monkeypatch.setattr(LocalEngine, "evaluate", lambda *_: dict.fromkeys(range(4), Scores(told(1, 7))))
    run = fedgraft.resume(interrupted, fed)
    assert [refusal["reason"] for refusal in run.records[-1]["refused"]] == [
        "fedavg, round 3: the test figures are of 7 samples, and were of 10 before"
    ] * 4
