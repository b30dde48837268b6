"""A warm start: what an earlier run left, for another to begin with.

With the same method the run goes on: the server is what it was, and so is every client that took part under the same
name. With another method, or where a server that knows its clients one by one would meet others, everybody begins with
the common model: what the earlier federation would give to a newcomer. Whoever was not there begins with that, too.
Rounds, schedules and random numbers begin anew in any case. All of it is copied into the new run's directory
(`start.safetensors`), and its checksum is part of what decides the run's result.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedgraft import models
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.growth import Growth
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.state import State
from fedgraft.engines import newcomer
from fedgraft.methods import METHODS
from fedgraft.runs import checkpoint, identity, results
from fedgraft.runs.checkpoint import Checkpoint
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.config import read as read_settings
from fedgraft.runs.directory import START

BEGINNING = (0, 0)
"""The version of a site's state that is as it began."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins with instead of weights that its seed draws."""

    initial: tuple[Tensor, ...]
    """The common model of each architecture; without any, who is new begins as in any run."""
    server: State | None
    """The server's state, if it goes on."""
    clients: Mapping[ClientId, State]
    """The states of clients that go on; of sites on other machines, which of their states it is."""
    facts: Mapping[str, Any]
    """Where it comes from, as result.json has it."""
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A checksum of everything that decides what the run becomes."""
        return hashlib.sha256(f"{self.server is not None} ".encode() + disk.packed(self._tensors)).hexdigest()

    @property
    def _tensors(self) -> dict[str, Tensor]:
        found = {f"initial/{kind}": weights for kind, weights in enumerate(self.initial)}
        found |= {f"server/{name}": tensor for name, tensor in (self.server or {}).items()}
        return found | {f"client/{n}/{name}": t for n, state in self.clients.items() for name, t in state.items()}

    def write(self, place: Path) -> None:
        """Copy it into a run's directory."""
        facts = {**self.facts, "goes_on": self.server is not None, "digest": self.digest}
        disk.write(place / START, disk.packed(self._tensors, facts=json.dumps(facts)))

    def settle(self, server: Server) -> None:
        """Let a server that was just set up be what it was."""
        if self.server is not None:
            server.restore({name: tensor.clone() for name, tensor in self.server.items()}, 0)


def read(place: Path) -> Start:
    """Read what the run in a directory began with."""
    damaged = UserError(f"{place / START} is damaged: put it back from a copy, or start the run anew")
    try:
        data = (place / START).read_bytes()
        tensors = load(data)
        facts = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["facts"])
        goes_on, digest = facts.pop("goes_on"), facts.pop("digest")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    parts: dict[str, dict[str, Tensor]] = {"initial": {}, "server": {}, "client": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    clients: dict[ClientId, State] = {}
    for name, tensor in parts["client"].items():
        number, _, rest = name.partition("/")
        clients.setdefault(int(number), {})[rest] = tensor
    initial = tuple(parts["initial"][str(kind)] for kind in range(len(parts["initial"])))
    found = Start(initial, parts["server"] if goes_on else None, clients, facts)
    if found.digest != digest:
        raise damaged
    return found


@dataclass(frozen=True, eq=False)
class Earlier:
    """A run that was finished, or has a checkpoint, as its directory tells it; its data are not asked for."""

    place: Path
    config: RunConfig
    names: tuple[str, ...]
    samples: tuple[int, ...]
    last: Checkpoint
    run: str | None
    """What the sites call it, if its clients are on other machines."""
    begun: tuple[Tensor, ...] = ()
    complaints: tuple[str, ...] = ()
    """What is wrong with newer checkpoints."""

    @classmethod
    def read(cls, place: Path) -> "Earlier":
        """Read a run's directory, or say why nothing can start from it."""
        if not (place / "config.toml").exists():
            if runs := sorted(each.parent.name for each in place.glob("*/config.toml")):
                raise UserError(f"{place} holds several runs: start from one of them, such as {place / runs[0]}")
            raise UserError(f"{place} holds no run to start from: there is no config.toml in it")
        last, complaints = checkpoint.read(place / "checkpoints", without="there is no older one")
        if last is None:
            why = f"has no checkpoint that is whole ({'; '.join(complaints)})" if complaints else "kept no checkpoint"
            again = "" if complaints else ": run it with --checkpoint-every auto"
            raise UserError(f"the run in {place} {why}, so there is nothing to start from{again}")
        config = configure(read_settings(place / "config.toml"))
        begun = read(place).initial if (place / START).exists() else ()
        return cls(place, config, *_clients(place), last, _federated(place), begun, tuple(complaints))

    def spec(self, spec: Spec) -> Spec:
        """What everybody knew of that run, which has the architectures of this one."""
        number = {architecture.name: kind for kind, architecture in enumerate(spec.architectures)}
        many, clients = len(spec.architectures) > 1, len(self.names)
        fleet = models.fleet(self.config.model, clients) if many else [spec.architectures[0].name] * clients
        return replace(
            spec, samples=self.samples, names=self.names, assignment=tuple(number.get(kind, 0) for kind in fleet),
            rounds=self.config.rounds, seed=self.config.seed, settings=self.config.training, share=1.0, budget=None,
            begun=self.begun,
        )  # fmt: skip

    def told(self, method: Method) -> str:
        rounds = f"{self.last.round} round{'' if self.last.round == 1 else 's'}"
        return f"{self.place} ({METHODS.label(method)}, {rounds})"


def _clients(place: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the clients of a run are called, and how many training samples each has."""
    who = identity.read(place)
    try:
        if (place / "federation.json").exists():
            facts = results.read_json(place / "federation.json")
            return tuple(facts["sites"]), tuple(int(each["train"]) for each in facts["samples"])
        names = who.names or results.read_json(place / results.RESULT)["names"]
        apart = [each["train"]["samples"] for each in who.data or [] if "train" in each]
        held = [int(each) for each in apart or results.read_json(place / results.RESULT)["samples"]]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{place} does not say who its clients were: it is damaged, or of an older fedgraft") from None
    return tuple(names), tuple(held[: len(names)])


def _federated(place: Path) -> str | None:
    file = place / "federation.json"
    return str(results.read_json(file).get("run")) if file.exists() else None


@dataclass(frozen=True, eq=False)
class Beginning:
    """Who is to start from an earlier run: a method and what everybody knows of the run to come."""

    method: Method
    spec: Spec
    model: str
    at_sites: bool = False
    """Whether the clients are on other machines, with their private states."""

    def of(self, place: Path) -> Start:
        """Take from an earlier run what this one begins with, or say why it cannot."""
        earlier = Earlier.read(place)
        before, same = self._before(earlier)
        server = _served(earlier, before, self.spec, self.model)
        goes_on, why = self._goes_on(earlier, before, server.spec) if same else (False, "")
        kinds = range(len(self.spec.architectures))
        initial = [found for kind in kinds if (found := newcomer.common(before, server, kind)) is not None]
        if len(initial) < len(kinds):
            initial = []
        if not goes_on:
            self._insist_on_common(earlier, before, bool(initial), why)
        clients = self._known(earlier) if goes_on else {}
        fresh = [self.spec.called(n) for n in range(self.spec.clients) if n not in clients]
        state = {name: tensor.clone() for name, tensor in server.items()} if goes_on else None
        facts = {
            "directory": str(place), "method": METHODS.label(before), "rounds": earlier.last.round,
            "origin": dict(earlier.last.digest), "clients": [self.spec.called(n) for n in sorted(clients)],
        }  # fmt: skip
        start = Start(tuple(initial), state, clients, facts, self._notes(earlier, before, goes_on, why, fresh))
        if goes_on:
            self._insist_on_fit(start, earlier)
        return start

    def _before(self, earlier: Earlier) -> tuple[Method, bool]:
        """The earlier run's method, and whether it is this one's, perhaps with other hyper-parameters."""
        here, there = METHODS.named(self.method), earlier.config.method
        if Path(here).name != Path(there).name:
            METHODS.insist(there)
            return METHODS.make(there, **earlier.config.params), False
        if earlier.config.params == self.method.parameters():
            return self.method, True
        return type(self.method)(**earlier.config.params), True

    def _goes_on(self, earlier: Earlier, before: Method, old: Spec) -> tuple[bool, str]:
        """Whether server and clients can go on, and if not, why."""
        if self.at_sites != (earlier.run is not None):
            where = "at its sites" if earlier.run is not None else "in its directory, and not at the sites"
            return False, f"its clients' private states are {where}"
        names = tuple(map(self.spec.called, range(self.spec.clients)))
        if names == earlier.names or Growth.of(before, old).order == "O(1)":
            return True, ""
        new, gone = [n for n in names if n not in earlier.names], [n for n in earlier.names if n not in names]
        who = [f"new: {', '.join(new)}"] * bool(new) + [f"gone: {', '.join(gone)}"] * bool(gone)
        how = "; ".join(who) or "in another order"
        return False, f"the server of {before.name} keeps something of each client, and they are not the same ({how})"

    def _insist_on_common(self, earlier: Earlier, before: Method, found: bool, why: str) -> None:
        if not found:
            reason = before.nothing_common or "its clients share no weights"
            told = f", which {self.method.name} would need" + (f" ({why})" if why else "")
            raise UserError(
                f"the run in {earlier.place} has no common model to start from{told}: with {before.name}, {reason}. "
                "Start from a run of fedavg, say, or go on with the same method and clients"
            )
        if self.method.refuses_start:
            raise UserError(
                f"{self.method.name} cannot start from the model in {earlier.place}: {self.method.refuses_start}"
                + (f" ({why})" if why else "")
            )

    def _known(self, earlier: Earlier) -> dict[ClientId, State]:
        """The states of clients that took part before, under their numbers in this run."""
        found: dict[ClientId, State] = {}
        for client in range(self.spec.clients):
            name = self.spec.called(client)
            state = earlier.last.clients.get(earlier.names.index(name)) if name in earlier.names else None
            if state is None:
                continue
            if earlier.run is None:
                found[client] = dict(state)
            elif tuple(state["version"].tolist()) != BEGINNING:
                origin = torch.frombuffer(bytearray.fromhex(earlier.run), dtype=torch.uint8)
                found[client] = {"origin": origin, **state}
        return found

    def _insist_on_fit(self, start: Start, earlier: Earlier) -> None:
        """Refuse a server that the method, as it is now, could not have."""
        for name, tensor in self.method.setup(replace(self.spec, begun=start.initial)).items():
            held = (start.server or {}).get(name)
            if held is None or held.shape != tensor.shape:
                raise UserError(
                    f"{self.method.name} cannot go on from {earlier.place}: {name!r} of its server is of another shape "
                    "there; have its hyper-parameters or the buffers' policy changed?"
                )

    def _notes(self, earlier: Earlier, before: Method, goes_on: bool, why: str, fresh: list[str]) -> tuple[str, ...]:
        told = earlier.told(before)
        new = f"; new: {', '.join(fresh[:10])}{', ...' if len(fresh) > 10 else ''}" if fresh else ""
        many = self.spec.clients - len(fresh)
        notes = [
            f"starts from {told}: the server and {many} client{'' if many == 1 else 's'} go on from there{new}"
            if goes_on else f"starts from the common model of {told}" + (f"; {why}" if why else "")
        ]  # fmt: skip
        notes += earlier.complaints
        if earlier.config.training.private or earlier.config.training.client_private:
            notes.append(f"{earlier.place} had differential privacy, and this run has none: it is not covered")
        return tuple(notes)


def _served(earlier: Earlier, before: Method, spec: Spec, model: str) -> Server:
    """The server of an earlier run as its last checkpoint has it, if its models are those of this run."""
    if earlier.config.model != model:
        raise UserError(
            f"the run in {earlier.place} trained the model {earlier.config.model}, and this one has {model}: a warm "
            f"start needs the same model (--model {earlier.config.model})"
        )
    old = earlier.spec(spec)
    expected = before.setup(old)
    held = {name: tensor.shape for name, tensor in earlier.last.server.items()}
    states = [] if earlier.run else [(n, s) for n, s in earlier.last.clients.items() if n < old.clients]
    fits = all(held.get(name) == tensor.shape for name, tensor in expected.items())
    if not fits or any(state["own"].shape != (old.layout(number).size,) for number, state in states):
        raise UserError(
            f"the models in {earlier.place} are of another shape than {model} is on these data: a warm start needs "
            "the same columns or image size, and the same number of classes"
        )
    server = Server(old, **earlier.last.server)
    server.round = earlier.last.round
    return server
