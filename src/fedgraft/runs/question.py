"""What a comparison or a sweep was asked: which methods, under which settings, with which seeds, on what."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.runs import directory, population
from fedgraft.runs.agenda import Entry, Planner
from fedgraft.runs.comparison import REFERENCES
from fedgraft.runs.config import RunConfig, configure, seeds_from
from fedgraft.runs.directory import folder_name
from fedgraft.runs.population import Model
from fedgraft.runs.sweep import Grid


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


def asked(members: Mapping[str, Method], seeds: Sequence[int]) -> dict[str, Any]:
    """What a comparison was asked for besides settings, as it is written."""
    methods = [
        {"name": METHODS.named(each), "params": directory.without_none(each.parameters())} for each in members.values()
    ]
    return {"seed": seeds[0], "seeds": len(seeds), "methods": methods}


@dataclass(frozen=True)
class Question:
    """Which methods are compared under which settings with which seeds, and on what."""

    settings: Mapping[str, RunConfig]
    """By their names in a sweep; without one there is one, without a name."""
    members: Mapping[str, Method]
    seeds: tuple[int, ...]
    planner: Planner
    objects: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)
    """The learning rates that tuning chose, by the labels of the methods."""

    def entries(self) -> tuple[Entry, ...]:
        """Plan a run of every method under all settings, so that what cannot work is refused; return all runs."""
        found: list[Entry] = []
        for name, config in self.settings.items():
            fed = self.planner.drawn(first := config.model_copy(update={"seed": self.seeds[0]}))
            if given := self.planner.federation is not None:
                population.insist_on_agreement(config, fed)
            settled = population.settled(first, fed, given=given)
            self.planner.remember(settled, fed)
            for seed, (label, method) in itertools.product(self.seeds, self.members.items()):
                known = {"method": METHODS.named(method), "params": method.parameters(), "seed": seed}
                if label in self.rates:
                    known["training"] = settled.training.but(lr=self.rates[label])
                place = f"{name + '/' if name else ''}{folder_name(label)}-seed{seed}"
                found.append(Entry.of(place, settled.model_copy(update=known), label))
            for entry in found[-len(self.seeds) * len(self.members) :][: len(self.members)]:
                self.planner(entry)
        return tuple(found)


def pose(
    chosen: str | Method | Iterable[str | Method],
    grid: Grid,
    seeds: int,
    config: RunConfig | None,
    recipe: str | None,
    federation: Federation | Callable[[int], Federation] | None,
    model: Model | str | None,
    settings: Mapping[str, Any],
) -> Question:
    """Make a question of what somebody asked for, or say what is wrong with it."""
    if not isinstance(seeds, int) or seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds!r}")
    if isinstance(model, str):
        settings, model = {**settings, "model": model}, None
    if surplus := settings.keys() & {"method", "params"}:
        raise UserError(
            f"{min(surplus)} is a setting of one run: name the methods of a comparison as 'fedapa:mu=0.3', "
            "or as objects such as FedAPA(mu=0.3)"
        )
    config = configure(config or {}, settings, recipe_name=recipe)
    members = grid.variants(contestants(chosen))
    found = all(METHODS.findable(each) for each in members.values())
    objects = federation is not None or model is not None or not found
    drawn = (lambda _: federation) if isinstance(federation, Federation) else federation
    if drawn is not None and not callable(drawn):
        raise UserError(f"federation is a Federation, or a function that makes one for a seed, not {federation!r}")
    numbers = tuple(seeds_from(config.seed, seeds))
    return Question(grid.settings(config), members, numbers, Planner(members, drawn, model), objects)
