"""Compare methods on the same federations: the same partitions, starts, batches and participants for each seed."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraft import methods
from fedgraft.core import disk
from fedgraft.core.errors import UserError
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.runs import directory, identity, results, setting
from fedgraft.runs.config import MACHINE, RunConfig, configure, read
from fedgraft.runs.run import Run, Watcher, finished, go_on, plan, start
from fedgraft.runs.setting import Model
from fedgraft.runs.table import Row, Spread, rows

REFERENCES = ("local", "fedavg")
AGENDA = "agenda.toml"
GIVEN = (
    "the comparison in {} was given data, a model or a method from Python; "
    "call fedgraft.compare as before, with the same out, and it goes on"
)


@dataclass
class Comparison:
    """Runs of several methods over several seeds."""

    config: RunConfig
    seeds: tuple[int, ...]
    runs: dict[str, list[Run]]

    @property
    def clients(self) -> int:
        return next(runs[0].spec.clients for runs in self.runs.values())

    def rows(self) -> list[Row]:
        """The table: references first, then the methods in the order asked for."""
        return rows({name: [run.result for run in runs] for name, runs in self.runs.items()})

    def report(self, path: str | Path) -> Path:
        """Write the whole comparison into one HTML file."""
        from fedgraft.report.page import report_runs

        return report_runs([run for runs in self.runs.values() for run in runs], Path(path))

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, Spread):
                return value._asdict()
            if isinstance(value, dict):
                return {key: plain(inner) for key, inner in value.items()}
            return value

        rows = [{name: plain(value) for name, value in vars(row).items()} for row in self.rows()]
        return {"seeds": list(self.seeds), "config": self.config.model_dump(), "rows": rows}


def contestants(chosen: Iterable[str | Method]) -> dict[str, Method]:
    """Return the methods of a comparison by their labels, the references first, nobody twice."""
    members: dict[str, Method] = {}
    for method in (*REFERENCES, *chosen):
        made = methods.parse(method) if isinstance(method, str) else method
        other = members.setdefault(label := methods.label(made), made)
        if type(other) is not type(made):
            raise UserError(f"two methods are called {label!r}; give one of them another name")
    return members


def folder_name(label: str, labels: Iterable[str]) -> str:
    """What the folders of a method's runs are called; no two of ``labels`` have the same."""

    def plain(text: str) -> str:
        return re.sub(r"[^\w.+=-]+", "-", text)

    name = plain(label)
    if len(name.encode()) <= 150 and [plain(each) for each in labels].count(name) == 1:
        return name
    return f"{name[:40]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


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
            members = [methods.make(each["name"], **each["params"]) for each in written["methods"]]
            seeds = tuple(range(written["seed"], written["seed"] + written["seeds"]))
            config = configure(written["config"], changes, {"seed": seeds[0]})
            return cls(config, {methods.label(each): each for each in members}, seeds, written["objects"])
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
            "methods": [{"name": methods.named(each), "params": directory.without_none(each.parameters())}
                        for each in self.members.values()],
            "config": directory.without_none(config),
        }  # fmt: skip

    def folder(self, place: Path, label: str, seed: int) -> Path:
        """Where a run of the comparison has its directory."""
        return place / f"{folder_name(label, self.members)}-seed{seed}"

    def left(self, place: Path) -> int:
        """How many runs are not finished yet."""
        folders = [self.folder(place, label, seed) for label in self.members for seed in self.seeds]
        return sum(not (folder / "result.json").exists() for folder in folders)

    @contextmanager
    def claimed(self, place: Path) -> Iterator[None]:
        """Have the comparison's directory to oneself: a fresh one, or one in which this comparison was interrupted."""
        begun = (place / AGENDA).exists()
        if begun and (place / "comparison.json").exists():
            raise UserError(f"the comparison in {place} is complete, there is nothing left to do")
        if begun and (differing := _differences(read(place / AGENDA), self.facts)):
            which = ", ".join(differing)
            raise UserError(f"{place} holds another comparison ({which}); name another directory with --out")
        if not begun:
            directory.fresh(place)
        with disk.locked(place):
            if not begun:
                disk.write(place / AGENDA, directory.as_toml(self.facts))
            yield


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name what is not the same in two agendas."""
    other = ["methods differ"] if there.get("methods") != here.get("methods") else []
    parts = [{key: value for key, value in each.items() if key != "methods"} for each in (there, here)]
    return other + identity.differences(*parts)


def compare(
    chosen: Iterable[str | Method],
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Callable[[int], Federation] | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run every chosen method, and local and fedavg, for ``seeds`` seeds.

    A method is chosen by name, as a text with settings (``"fedapa:mu=0.3"``) or as an object. ``settings`` and
    ``model`` are those of :func:`fedgraft.run`; ``federation`` may make your own for each seed. Every seed draws a
    new partition, new initial weights and new batches, the same for all methods. If ``out`` holds the same comparison,
    interrupted, it goes on: finished runs are kept, and one that was cut short continues from its checkpoint.
    """
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds}")
    if isinstance(model, str):
        settings["model"], model = model, None
    config = config or configure(settings, recipe_name=recipe)
    members = contestants(chosen)
    found = all(methods.findable(each) for each in members.values())
    objects = federation is not None or model is not None or not found
    agenda = Agenda(config, members, tuple(range(config.seed, config.seed + seeds)), objects)
    return _carry_out(agenda, federation, model, watchers, None if out is None else Path(out))


def resume(place: str | Path, *, watchers: Sequence[Watcher] = (), **changes: Any) -> Comparison:
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
) -> Comparison:
    """Do what is left of an agenda; what cannot work is refused before anything is written."""
    first, given = agenda.seeds[0], federation is not None

    def plans(seed: int) -> dict[str, Run]:
        config = agenda.config.model_copy(update={"seed": seed})
        fed = setting.federation(config) if federation is None else federation(seed)
        return {label: plan(method, fed, config, model, given=given) for label, method in agenda.members.items()}

    planned = plans(first)
    runs: dict[str, list[Run]] = {label: [] for label in agenda.members}
    with nullcontext() if place is None else agenda.claimed(place):
        for seed in agenda.seeds:
            for label, run in (planned if seed == first else plans(seed)).items():
                folder = None if place is None else agenda.folder(place, label, seed)
                runs[label].append(_complete(run, folder, watchers))
        known = next(iter(planned.values())).config
        told = known.model_copy(update={"seed": first, "method": agenda.config.method, "params": {}})
        comparison = Comparison(told, agenda.seeds, runs)
        if place is not None:
            results.write_json(place / "comparison.json", comparison.to_json())
    return comparison


def _complete(run: Run, folder: Path | None, watchers: Sequence[Watcher]) -> Run:
    """Keep a run that is finished, go on with one that was begun, start one that is missing."""
    if folder is None or not (folder / "config.toml").exists():
        return start(run, folder, watchers)
    return finished(run, folder) if (folder / "result.json").exists() else go_on(run, folder, watchers)
