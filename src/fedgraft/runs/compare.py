"""Compare methods on the same federations: the same partitions, starts, batches and participants for each seed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.runs import directory, identity, population, results
from fedgraft.runs.comparison import REFERENCES, Comparison
from fedgraft.runs.config import MACHINE, RunConfig, configure, read
from fedgraft.runs.directory import COMPARISON, folder_name
from fedgraft.runs.population import Model
from fedgraft.runs.run import Run, Watcher, finished, go_on, plan, start

AGENDA = "agenda.toml"
GIVEN = (
    "the comparison in {} was given data, a model or a method from Python; "
    "call fedgraft.compare as before, with the same out, and it goes on"
)


def contestants(chosen: str | Method | Iterable[str | Method]) -> dict[str, Method]:
    """Return the methods of a comparison by their labels, the references first, nobody twice."""
    if isinstance(chosen, str | Method):
        chosen = [chosen]
    if not isinstance(chosen, Iterable):
        raise UserError(f"name methods to compare, such as ['fedapa', 'ditto'], not {chosen!r}")
    members: dict[str, Method] = {}
    for method in (*REFERENCES, *chosen):
        if not isinstance(method, str | Method):
            raise UserError(f"a method is a name, such as 'fedapa:mu=0.3', or an object of its class, not {method!r}")
        made = METHODS.make(method) if isinstance(method, str) else method
        other = members.setdefault(label := METHODS.label(made), made)
        if type(other) is not type(made):
            raise UserError(f"two methods are called {label!r}; give one of them another name")
    return members


@dataclass(frozen=True)
class Agenda:
    """Which runs a comparison is made of: written down before the first, so that it can go on after any accident."""

    config: RunConfig
    members: Mapping[str, Method]
    seeds: tuple[int, ...]
    objects: bool = False
    """Whether data, a model or a method came from Python and cannot be found again: then only Python can go on."""

    @classmethod
    def read(cls, place: Path, changes: Mapping[str, Any]) -> "Agenda":
        """Read what is written in ``place``; ``changes`` may set what is the machine's."""
        if surplus := set(changes) - MACHINE:
            raise UserError(f"resuming cannot change {', '.join(sorted(surplus))}: it would be another comparison")
        written = read(place / AGENDA)
        try:
            if written["objects"]:
                raise UserError(GIVEN.format(place))
            members = [METHODS.make(each["name"], **each["params"]) for each in written["methods"]]
            seeds = tuple(range(written["seed"], written["seed"] + written["seeds"]))
            config = configure(written["config"], changes, {"seed": seeds[0]})
            return cls(config, {METHODS.label(each): each for each in members}, seeds, written["objects"])
        except (LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{place / AGENDA} is not the agenda of a comparison: {error}") from None

    @property
    def facts(self) -> dict[str, Any]:
        """All of it, as it is written."""
        config = self.config.model_dump(exclude={"method", "params", "seed"})
        return {
            "seed": self.seeds[0],
            "seeds": len(self.seeds),
            "objects": self.objects,
            "methods": [{"name": METHODS.named(each), "params": directory.without_none(each.parameters())}
                        for each in self.members.values()],
            "config": directory.without_none(config),
        }  # fmt: skip

    def folder(self, place: Path, label: str, seed: int) -> Path:
        """Where a run of the comparison has its directory."""
        return place / f"{folder_name(label)}-seed{seed}"

    def left(self, place: Path) -> int:
        """How many runs are not finished yet."""
        folders = [self.folder(place, label, seed) for label in self.members for seed in self.seeds]
        return sum(not (folder / "result.json").exists() for folder in folders)

    @contextmanager
    def claimed(self, place: Path) -> Iterator[None]:
        """Have the comparison's directory to oneself: a fresh one, or one with this comparison or a part of it."""
        begun = (place / AGENDA).exists()
        if not begun:
            directory.fresh(place)
        with disk.locked(place):
            if not begun or self._extends(place):
                (place / COMPARISON).unlink(missing_ok=True)  # it tells of fewer runs; without it, some are missing
                disk.write(place / AGENDA, directory.as_toml(self.facts))
            yield

    def _extends(self, place: Path) -> bool:
        """Whether there are more methods or seeds here than in ``place``; all that is there has to be here too."""
        there, here = read(place / AGENDA), self.facts
        differing = differences(there, here)
        if not differing and (place / COMPARISON).exists():
            raise UserError(f"the comparison in {place} is complete, there is nothing left to do")
        if differing and not self._contains(there):
            which = ", ".join(differing)
            raise UserError(f"{place} holds another comparison ({which}); name another directory with --out")
        return bool(differing)

    def _contains(self, there: Mapping[str, Any]) -> bool:
        """Whether a written agenda is this one with fewer methods or seeds."""
        here = self.facts
        fewer = there.get("methods"), there.get("seeds")
        if not (isinstance(fewer[0], list) and isinstance(fewer[1], int)):
            return False
        kept = all(method in here["methods"] for method in fewer[0]) and fewer[1] <= here["seeds"]
        return kept and not differences({**there, "methods": here["methods"], "seeds": here["seeds"]}, here)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name what is not the same in two agendas."""
    other = ["methods differ"] if there.get("methods") != here.get("methods") else []
    parts = [{key: value for key, value in each.items() if key != "methods"} for each in (there, here)]
    return other + identity.differences(*parts)


def compare(
    chosen: str | Method | Iterable[str | Method] = (),
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Federation | Callable[[int], Federation] | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison[Run]:
    """Run every chosen method, and local and fedavg, for ``seeds`` seeds.

    A method is chosen by name, as a text with settings (``"fedapa:mu=0.3"``) or as an object. ``settings`` and
    ``model`` are those of :func:`fedgraft.run`; ``federation`` is your own, or makes it for each seed. Every seed draws
    a new partition, new initial weights and new batches, the same for all methods. If ``out`` holds the same
    comparison, interrupted or with fewer methods or seeds, it goes on: finished runs are kept, and one that was cut
    short continues from its checkpoint.
    ``progress`` shows how it goes and, at the end, the table; unless told, in a terminal and in a notebook.
    """
    from fedgraft.report.comparison import view
    from fedgraft.terminal import watched

    if not isinstance(seeds, int) or seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds!r}")
    if isinstance(model, str):
        settings["model"], model = model, None
    if surplus := settings.keys() & {"method", "params"}:
        raise UserError(
            f"{min(surplus)} is a setting of one run: name the methods of a comparison as 'fedapa:mu=0.3', "
            "or as objects such as FedAPA(mu=0.3)"
        )
    config = configure(config or {}, settings, recipe_name=recipe)
    members = contestants(chosen)
    found = all(METHODS.findable(each) for each in members.values())
    objects = federation is not None or model is not None or not found
    drawn = (lambda _: federation) if isinstance(federation, Federation) else federation
    if drawn is not None and not callable(drawn):
        raise UserError(f"federation is a Federation, or a function that makes one for a seed, not {federation!r}")
    agenda = Agenda(config, members, tuple(range(config.seed, config.seed + seeds)), objects)
    place = None if out is None else Path(out)
    left = len(agenda.members) * seeds if place is None else agenda.left(place)
    return watched(
        lambda display: _carry_out(agenda, drawn, model, [*watchers, *display], place),
        view, progress=progress, runs=left,
    )  # fmt: skip


def resume(place: str | Path, *, watchers: Sequence[Watcher] = (), **changes: Any) -> Comparison[Run]:
    """Go on with an interrupted comparison at its first missing run, to the same bits.

    ``changes`` may set what is the machine's: ``workers`` and so on. A comparison that was given data or a model from
    Python goes on when :func:`compare` is called as before, with the same ``out``.
    """
    agenda = Agenda.read(Path(place), changes)
    return _carry_out(agenda, None, None, watchers, Path(place))


def _carry_out(
    agenda: Agenda,
    federation: Callable[[int], Federation] | None,
    model: Model | None,
    watchers: Sequence[Watcher],
    place: Path | None,
) -> Comparison[Run]:
    """Do what is left of an agenda; what cannot work is refused before anything is written."""
    first, given = agenda.seeds[0], federation is not None

    def plans(seed: int) -> dict[str, Run]:
        config = agenda.config.model_copy(update={"seed": seed})
        if federation is None:
            fed = population.federation(config)
        else:
            fed = federation(seed)
            if not isinstance(fed, Federation):
                raise UserError(f"the function given as federation made no Federation for seed {seed}, but {fed!r}")
            population.insist_on_agreement(config, fed)
        return {label: plan(method, fed, config, model, given=given) for label, method in agenda.members.items()}

    planned = plans(first)
    made = next(iter(planned.values())).federation
    agenda = replace(agenda, config=population.settled(agenda.config, made, given=given))
    runs: dict[str, list[Run]] = {label: [] for label in agenda.members}
    with nullcontext() if place is None else agenda.claimed(place):
        for seed in agenda.seeds:
            for label, run in (planned if seed == first else plans(seed)).items():
                folder = None if place is None else agenda.folder(place, label, seed)
                runs[label].append(complete(run, folder, watchers))
        known = next(iter(planned.values())).config
        told = known.model_copy(update={"seed": first, "method": agenda.config.method, "params": {}})
        comparison = Comparison(told, runs)
        if place is not None:
            results.write_json(place / COMPARISON, comparison.to_json())
    return comparison


def complete(run: Run, folder: Path | None, watchers: Sequence[Watcher]) -> Run:
    """Keep a run that is finished, go on with one that was begun, start one that is missing."""
    if folder is None or not (folder / "config.toml").exists():
        return start(run, folder, watchers)
    return finished(run, folder) if (folder / "result.json").exists() else go_on(run, folder, watchers)
