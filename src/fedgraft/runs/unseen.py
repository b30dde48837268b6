"""Clients that were held out of training join when it is over: what a method is worth to somebody it never met."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

from fedgraft.core.evaluation import POINTS, Scores, Summary
from fedgraft.core.method import Method, Server, Spec
from fedgraft.data.federation import Federation
from fedgraft.engines import devices
from fedgraft.engines.newcomer import Joined, Newcomer, NewcomerError, insist_on_newcomers, welcome
from fedgraft.runs.config import RunConfig
from fedgraft.runs.population import Population
from fedgraft.runs.results import summary_facts


@dataclass(frozen=True)
class _Fared:
    """What is told of a newcomer."""

    scores: Scores
    steps: int
    bytes_up: int
    bytes_down: int

    @classmethod
    def of(cls, joined: Joined) -> "_Fared":
        return cls(joined.scores, joined.steps, joined.bytes_up, joined.bytes_down)


def insist(method: Method, fed: Federation, spec: Spec) -> None:
    """Refuse, before anything is trained, to hold clients out for a method that has no use for them."""
    if fed.unseen:
        insist_on_newcomers(method, spec)


def joined(method: Method, server: Server, fed: Population, config: RunConfig) -> dict[str, Any]:
    """Let each of the clients that were held out join by itself, for as many rounds as there were; say how they fare.

    The server stays as it is, so that none of them sees another, and their order does not matter.
    """
    if not isinstance(fed, Federation) or not fed.unseen:
        return {}
    started = time.perf_counter()
    found = {
        number: each
        for number, (name, data) in enumerate(fed.unseen)
        if (each := _one(method, server, Newcomer(name, data, _kind(server, number)), config)) is not None
    }
    scores = {number: test for number, each in found.items() if (test := each.scores.test) is not None}
    tests = {
        point: Summary.of({n: each[point] for n, each in scores.items()}, len(fed.unseen), server.spec.metrics)
        for point in POINTS
    }
    return {
        "unseen": {
            "names": [name for name, _ in fed.unseen],
            "samples": [len(data.train) for _, data in fed.unseen],
            "test_samples": list(tests["trained"].tested),
            "rounds": server.spec.rounds,
            "steps": [found[number].steps if number in found else 0 for number in range(len(fed.unseen))],
            "bytes_up_per_client": statistics.fmean([each.bytes_up for each in found.values()] or [0]),
            "bytes_down_per_client": statistics.fmean([each.bytes_down for each in found.values()] or [0]),
            "seconds": round(time.perf_counter() - started, 3),
            **{point: summary_facts(tests[point]) for point in POINTS},
        }
    }


def _kind(server: Server, number: int) -> int:
    """Which network a client gets that joins: those of the others in turn."""
    return server.spec.assignment[number % server.spec.clients]


def _one(method: Method, server: Server, newcomer: Newcomer, config: RunConfig) -> _Fared | None:
    """Let a client join; one that fails has no figures, or ends the run, as the run says of failing clients."""
    place = devices.listed(config.device)[0]
    try:
        return devices.aside(
            place, lambda: _Fared.of(welcome(method, server, newcomer, server.spec.rounds, device=place))
        )
    except NewcomerError:
        if config.failed_client == "absent":
            return None
        raise
