"""Should a site join, and with which method? A race of methods on validation data, and one look at test data.

Where nobody chose a learning rate, a few are tried first, with Local and FedAvg with fine-tuning. The race is
successive halving: every method that fits runs for a third of the rounds, the better half for two thirds,
and the best few to the end, with several seeds, beside Local and FedAvg with fine-tuning. Who goes on is decided by the
client mean of the leading metric on validation data, each method at its own point: the model that it means a client to
use. Test data are looked at once, for the answer. All seeds have the same sites with the same samples, and differ in
starts and batches.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.core.metrics import Metric
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.runs import directory, learning, population, reading
from fedgraft.runs.agenda import complete, differences
from fedgraft.runs.compare import compare
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import RunConfig, configure, read, seeds_from
from fedgraft.runs.directory import COMPARISON, FINAL, RACE, folder_name
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.population import Model
from fedgraft.runs.question import asked, contestants
from fedgraft.runs.recommendation import ALONE, TUNED, Recommendation, Say, Standing, listed
from fedgraft.runs.run import insist_on_replies, plan

REFERENCES = (ALONE, "fedavg", TUNED)
"""In the race to its end, whatever validation data say."""
PARTS = (1 / 3, 2 / 3)
"""Of the rounds, in each rung before the last."""
FINALISTS = 3
FEW = 30
"""Validation samples below which a site's figure is little more than chance."""
FEW_OF_A_CLASS = 5
"""Validation samples that are not of a site's most frequent class, below which a ranking of them is worth a word."""
VALIDATION = 0.2
"""The share of training samples that is put aside, where nobody says another and sites bring none."""


def says(fed: Federation, metrics: Iterable[Metric]) -> "Say":
    """How much each site's figure counts in the choice, where not all count alike.

    A metric that ranks one class against another is as sure as there are samples of the rarer one. By Hanley and
    McNeil (1982) the variance of an AUC of m and n samples is about a/m + b/n, so that its inverse, the best weight of
    a mean, goes by mn/(m + n): between half of the rarer class's samples and all of them. Weights by the rarer class
    therefore lose at most a ninth of what the best would give where a and b are alike (Kantorovich's inequality), and
    counting all sites alike may lose most of it; `tests/runs/test_recommend.py` draws it. With more than two classes
    the samples that are not of the most frequent one take the rarer class's place.
    """
    ranking = [metric.name for metric in metrics if metric.single]
    if not ranking or not fed.task.has_classes:
        return {}
    counts = [client.validation.counts(fed.task.classes) for client in fed.clients]
    others = [int(each.sum() - each.max()) for each in counts]
    return dict.fromkeys(ranking, others)


def ranked(standings: Mapping[str, Standing], metrics: Sequence[MetricInfo]) -> list[str]:
    """The best first: who lost the fewest sites; further metrics decide where the leading one does not."""

    def key(label: str) -> list[float]:
        figures = zip(metrics, standings[label].figures, strict=True)
        worths = [math.inf if math.isnan(value) else -metric.worth(value) for metric, value in figures]
        return [standings[label].lost, *worths]

    return sorted(standings, key=key)


@dataclass
class _Race:
    """What is raced, where it is written, and what became of it so far."""

    config: RunConfig
    federation: Federation
    given: bool
    model: Model | None
    members: dict[str, Method]
    seeds: int
    budget: int | None
    minutes: float | None
    place: Path | None
    watchers: Sequence[Watcher]
    left_out: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    spent: float = 0.0
    """Seconds that the search for a rate took."""
    settled: str | None = None
    """What is said of the settings that it found."""

    def fit(self) -> None:
        """Leave out who cannot work with this task, these sites or these networks; a reference has to."""
        for label, method in list(self.members.items()):
            try:
                plan(method, self.federation, self.config, self.model, given=self.given)
            except UserError as error:
                if label in REFERENCES:
                    raise
                self.left_out[label] = str(error)
                del self.members[label]

    @property
    def contenders(self) -> list[str]:
        return [label for label in self.members if label not in REFERENCES]

    @property
    def asked(self) -> dict[str, Any]:
        """Who is in the race and with which settings, as it is written."""
        settled = population.settled(self.config, self.federation, given=self.given)
        objects = self.given or self.model is not None or not all(map(METHODS.findable, self.members.values()))
        config = settled.model_dump(exclude={"method", "params", "seed"})
        seeds = seeds_from(self.config.seed, self.seeds)
        tried = [learning.flags(each) for each in learning.rates(self.config, self.federation)]
        limits = {"budget_bytes": self.budget or 0, "minutes": float(self.minutes or 0), "rates": tried}
        return {**asked(self.members, seeds), "objects": objects, "config": directory.without_none(config), **limits}

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Have the race's directory to oneself: a fresh one, or one in which this very race was begun."""
        if self.place is None:
            yield
            return
        facts = self.asked
        begun = (self.place / RACE).exists()
        if begun and (differing := differences(read(self.place / RACE), facts)):
            raise UserError(f"{self.place} holds another race ({', '.join(differing)}); name another directory")
        if not begun:
            directory.fresh(self.place)
        with disk.locked(self.place):
            disk.write(self.place / RACE, directory.as_toml(facts))
            yield

    def rung(self, name: str, labels: Iterable[str], rounds: int) -> dict[str, Standing]:
        """Run methods for so many rounds with one seed; one that fails is out of the race, and it is said why."""
        config = self.config.model_copy(update={"rounds": rounds})
        found: dict[str, Standing] = {}
        for label in labels:
            run = plan(self.members[label], self.federation, config, self.model, given=self.given)
            folder = None if self.place is None else self.place / name / f"{folder_name(label)}-seed{config.seed}"
            try:
                facts = insist_on_replies(complete(run, folder, self.watchers)).facts
            except UserError as error:
                if label in REFERENCES:
                    raise
                self.left_out[label] = str(error)
                continue
            self.runs += 1
            found[label] = Standing.of([facts], facts.metrics, self.say)
        return found

    @cached_property
    def judges(self) -> Sequence[Metric]:
        return self.federation.task.judges(self.config.metrics)

    @cached_property
    def metrics(self) -> list[MetricInfo]:
        return [MetricInfo.of(metric) for metric in self.judges]

    @cached_property
    def say(self) -> Say:
        return says(self.federation, self.judges)

    @property
    def classes(self) -> list[tuple[int, int]] | None:
        """The test samples of two classes at each site, where these say how sure an AUC is."""
        if self.metrics[0].name != "auc" or self.federation.task.classes != 2:
            return None
        counts = [client.test.counts(2).tolist() for client in self.federation.clients]
        return [(int(one), int(other)) for one, other in counts]

    def within_budget(self, pilot: Mapping[str, Standing]) -> list[str]:
        """The contenders whose traffic of a whole run is within the budget; refuse if nobody's is."""
        needs = {label: each.traffic * self.config.rounds for label, each in pilot.items() if label != ALONE}
        if self.budget is None:
            return [label for label in self.contenders if label in pilot]
        cheapest = min(needs, key=lambda label: needs[label])
        if needs[cheapest] > self.budget:
            raise UserError(
                f"with {self.budget:,} bytes for each client nobody can join: {cheapest}, which sends least, needs "
                f"about {needs[cheapest]:,.0f} in {self.config.rounds} rounds; allow more, or fewer --rounds"
            )
        for label, need in needs.items():
            if need > self.budget:
                self.left_out[label] = f"it needs about {need:,.0f} bytes for each client, and {self.budget:,} may be"
        return [label for label in self.contenders if label in pilot and needs[label] <= self.budget]

    def lengths(self, pilot: Mapping[str, Standing], contenders: int) -> list[int]:
        """How many rounds each rung has; with a budget of minutes, fewer, so that the final can be whole."""
        rounds, sizes = self.config.rounds, _sizes(contenders)
        usual = [max(1, math.ceil(part * rounds)) for part, _ in zip(PARTS, sizes, strict=False)]
        if self.minutes is None:
            return usual
        fixed = sum(pilot[label].seconds for label in REFERENCES)
        others = [each.seconds for label, each in pilot.items() if label not in REFERENCES]
        each = statistics.fmean(others) if others else 0.0
        final = (fixed + min(FINALISTS, contenders) * each) * rounds * self.seeds
        a_round = [fixed + size * each for size in sizes]
        left = 60 * self.minutes - self.spent - sum(pilot_.seconds for pilot_ in pilot.values()) - final
        if sum(a_round) > left:
            needed = (60 * self.minutes - left + sum(a_round)) / 60
            raise UserError(
                f"{self.minutes:g} minutes are too few: such a race takes about {needed:.1f} on this machine; allow "
                "more, name fewer methods, or take fewer --rounds or --seeds"
            )
        planned = sum(length * seconds for length, seconds in zip(usual, a_round, strict=True))
        share = min(1.0, left / planned) if planned else 1.0
        return [max(1, math.floor(length * share)) for length in usual]

    def settle(self) -> None:
        """Choose how clients train, on validation data, unless somebody did: what is best for the references."""
        usual, tried = self.config, learning.rates(self.config, self.federation)
        # after few rounds nobody has learned, and the choice would be one among guesses
        rounds = usual.rounds if self.minutes is None else max(1, math.ceil(PARTS[0] * usual.rounds))
        worths: list[tuple[float, ...]] = []
        for settings in tried:
            self.config = configure(usual, settings)
            name = learning.flags(settings).replace("--", "").replace(" ", "-")
            try:
                standings = self.rung(f"rates/{name}", (ALONE, TUNED), rounds)
            except UserError:  # no reply was fit to be taken: steps were too long
                worths.append((-math.inf,) * (1 + len(self.metrics)))
                continue
            self.spent += sum(each.seconds for each in standings.values()) * rounds
            worths.append(self._worths(standings))
        if tried:
            chosen = tried[worths.index(max(worths))]
            self.config = configure(usual, chosen)
            self.settled = (
                f"Clients trained with {learning.flags(chosen)}, which of {len(tried)} settings is best for local and "
                f"fedavg-ft on validation data after {rounds} rounds; a rate that you name is taken as it is."
            )

    def _worths(self, standings: Mapping[str, Standing]) -> tuple[float, ...]:
        """How few sites were lost, then the mean of several methods by every metric; what is unknown is worth least."""
        means = [
            statistics.fmean(metric.worth(each.figures[at]) for each in standings.values())
            for at, metric in enumerate(self.metrics)
        ]
        lost = -float(max(each.lost for each in standings.values()))
        return (lost, *(-math.inf if math.isnan(mean) else mean for mean in means))

    def heats(self) -> list[str]:
        """Race to the final, and say who is in it, beside the references."""
        contenders = self.contenders
        pilot: dict[str, Standing] = {}
        if self.budget is not None or self.minutes is not None:
            pilot = self.rung("pilot", self.members, 1)
            contenders = self.within_budget(pilot)
        for number, rounds in enumerate(self.lengths(pilot, len(contenders)), 1):
            standings = self.rung(f"rung-{number}", [ALONE, TUNED, *contenders], rounds)
            order = [label for label in ranked(standings, self.metrics) if label in contenders]
            contenders = order[: max(FINALISTS, math.ceil(len(contenders) / 2))]
        return contenders[:FINALISTS]

    def final(self, finalists: Sequence[str]) -> Comparison[Any]:
        """Compare the finalists and the references over all rounds and seeds."""
        place = None if self.place is None else self.place / FINAL
        self.runs += (len(finalists) + len(REFERENCES)) * self.seeds
        if place is not None and (place / COMPARISON).exists():
            return reading.read(place)
        chosen = [self.members[label] for label in (TUNED, *finalists)]
        return compare(
            chosen, seeds=self.seeds, config=self.config, federation=self.federation if self.given else None,
            model=self.model, watchers=self.watchers, out=place, progress=False,
        )  # fmt: skip

    def answer(self, final: Comparison[Any], tried: int) -> Recommendation:
        """Choose on validation data, and only then look at test data."""
        standings = {label: Standing.of(each, self.metrics, self.say) for label, each in final.results.items()}
        fitting = {
            label: each for label, each in standings.items()
            if label != ALONE and (self.budget is None or each.traffic * self.config.rounds <= self.budget)
        }  # fmt: skip
        if not fitting:
            raise UserError(f"every finalist sent more than {self.budget:,} bytes for each client; allow more")
        best = ranked(fitting, self.metrics)[0]
        say = self.say.get(self.metrics[0].name)
        settled = () if self.settled is None else (self.settled,)
        notes = (*_about_validation(self.federation), *_about_say(self.federation, say), *settled)
        return Recommendation(final, standings, best, tried, self.runs, self.left_out, notes, self.place, self.classes)


def _sizes(contenders: int) -> list[int]:
    """How many are in each rung before the final."""
    sizes: list[int] = []
    for _ in PARTS:
        if contenders > FINALISTS:
            sizes.append(contenders)
            contenders = max(FINALISTS, math.ceil(contenders / 2))
    return sizes


def _about_validation(fed: Federation) -> tuple[str, ...]:
    """Say which sites had no say in the choice, or one that is chance for the most part; refuse if nobody had one."""
    aside = {name: len(client.validation) for name, client in zip(fed.names, fed.clients, strict=True)}
    silent = [name for name, count in aside.items() if not count]
    few = [f"{name} ({count})" for name, count in aside.items() if 0 < count < FEW]
    if len(silent) == len(fed):
        raise UserError(
            f"no site has validation samples to choose a method by, and a share of {fed.validation:g} of its training "
            "samples is none: give a larger --validation, more samples, or x_val at the sites"
        )
    notes = [f"Without validation samples, and so without a say in the choice: {listed(silent)}."] if silent else []
    if few:
        notes.append(f"Few validation samples, so that chance has a say in the choice: {listed(few)}.")
    return tuple(notes)


def _about_say(fed: Federation, say: Sequence[int] | None) -> Iterator[str]:
    """Name the sites that count little in the choice, as nearly all of their samples are of one class."""
    little = [
        f"{name} ({count})"
        for name, count in zip(fed.names, say or (), strict=say is not None)
        if count < FEW_OF_A_CLASS
    ]
    if little:
        yield f"Counts little in the choice, having so few validation samples of another class: {listed(little)}."


def recommend(
    data: str | Path | Federation,
    *,
    methods: str | Method | Iterable[str | Method] | None = None,
    seeds: int = 3,
    budget_bytes: int | None = None,
    minutes: float | None = None,
    config: RunConfig | None = None,
    recipe: str | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Recommendation:
    """Say whether joining pays for the sites, with which method, and what it costs.

    Args:
        data: a path or a name as in :func:`fedgraft.federate`, or a federation.
        methods: those to try (default: all that fit); Local and FedAvg with fine-tuning are always tried.
        seeds: how many in the final comparison.
        budget_bytes: how many bytes one client may send and receive in a whole run.
        minutes: about how many minutes all runs together may take on this machine.
        config: settings as an object, which ``settings`` override.
        recipe: a paper's settings by name, which everything else overrides.
        model: a name, a module or a function that builds one.
        watchers: objects that are called after every round.
        out: the directory of the results. If it holds the same search, interrupted, that one is continued.
        progress: whether to show progress (default: in a terminal and in a notebook).
        **settings: those of :func:`fedgraft.run`; a fifth of the training samples is set aside for validation where
            sites bring none.

    Returns:
        The answer, as a whole and for each site.
    """
    from fedgraft.terminal import watched

    race = _entered(data, methods, configure(config or {}, settings, recipe_name=recipe), model)
    race = replace(race, seeds=seeds, budget=budget_bytes, minutes=minutes, place=None if out is None else Path(out))
    _insist(race)

    def work(display: list[Watcher]) -> Recommendation:
        race.watchers = [*watchers, *display]
        with race.claimed():
            tried = len(race.contenders) + len(REFERENCES) - 1
            race.settle()
            made = race.answer(race.final(race.heats()), tried)
            if race.place is not None:
                made.write(race.place)
            return made

    return watched(work, str, progress=progress, runs=len(race.members))


def _entered(
    data: str | Path | Federation, methods: str | Method | Iterable[str | Method] | None, config: RunConfig, model: Any
) -> _Race:
    """Find the data and the methods; the split is the same for all seeds."""
    given = isinstance(data, Federation)
    if config.hold_out is not None:
        raise UserError("hold_out is for run and compare: whether joining pays is asked for every site")
    if isinstance(model, str):
        config, model = configure(config, {"model": model}), None
    if isinstance(data, Federation):
        population.insist_on_agreement(config, data)
        fed = data
    else:
        aside = {} if "validation" in config.model_fields_set else {"validation": VALIDATION}
        config = configure(config, {"dataset": str(data), "data_seed": config.drawn_by, **aside})
        fed = population.federation(config)
    chosen = list(METHODS) if methods is None else [methods] if isinstance(methods, str | Method) else list(methods)
    members = contestants([TUNED, *chosen])
    return _Race(config, fed, given, model, members, 3, None, None, None, ())


def _insist(race: _Race) -> None:
    """Refuse a question that cannot be answered, before anything is written."""
    if len(race.federation) < 2:
        raise UserError("there is one site alone: whether joining pays needs at least two")
    if not isinstance(race.seeds, int) or race.seeds < 1:
        raise UserError(f"a race needs at least one seed, not {race.seeds!r}")
    seeds_from(race.config.seed, race.seeds)
    for name, value in (("budget_bytes", race.budget), ("minutes", race.minutes)):
        if value is not None and not value > 0:
            raise UserError(f"{name} has to be more than nothing, not {value!r}")
    _about_validation(race.federation)
    race.fit()
