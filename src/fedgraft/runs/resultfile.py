"""What a result.json has to look like, so that whatever else lies in its place is refused in a sentence.

A result is written by us and read by nobody but us, as a rule; a file that was cut, edited or forged must not end in a
traceback, nor in a page that is wrong. Fields that later versions add pass.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedgraft.core.evaluation import POINTS, Point
from fedgraft.runs.config import LARGEST_SEED
from fedgraft.runs.metric import MetricInfo

FORMAT = 2
LARGEST = 1e100
"""Beyond this a number is none: its square, or a sum of a few, would overflow."""
_DEEPEST = 30

Set = Literal["", "_validation", "_global"]
SETS: tuple[Set, ...] = ("", "_validation", "_global")
"""What a record appends to a point: nothing for the clients' own test samples."""

Amount = Annotated[float, Field(ge=0, le=1e18)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=10**18)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Ordinal = Annotated[int, Field(ge=1, le=10**9)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class Figures(_Part):
    """A metric over all clients: the mean of their own figures, and that of all their samples together."""

    mean: Number | None
    pooled: Number | None


class ClientFigures(Figures):
    """The same, and the figure of each client."""

    per_client: list[Number | None]


class Test(_Part):
    """All clients on one set of samples, at one point."""

    metrics: dict[str, ClientFigures]
    diverged: list[Count] = []


class Refused(_Part):
    """A reply that was not taken."""

    client: int
    reason: str


class Record(_Part):
    """One round. A set of samples that was not tested is not there at all."""

    round: Ordinal
    seconds: Amount = 0.0
    server_seconds: Amount = 0.0
    evaluation_seconds: Amount = 0.0
    participants: list[Count] = []
    accepted: Count = 1
    """How many replies the server took; versions that did not say so went on with those that they had."""
    refused: list[Refused] = []
    bytes_up: Count
    bytes_down: Count
    messages_up: Count = 0
    messages_down: Count = 0
    loss: Number | None = None
    test_samples: list[Count] = Field(default=None)  # type: ignore[arg-type]
    received: Test = Field(default=None)  # type: ignore[assignment]
    trained: Test = Field(default=None)  # type: ignore[assignment]
    received_validation: Test = Field(default=None)  # type: ignore[assignment]
    trained_validation: Test = Field(default=None)  # type: ignore[assignment]
    received_global: Test = Field(default=None)  # type: ignore[assignment]
    trained_global: Test = Field(default=None)  # type: ignore[assignment]

    @model_validator(mode="after")
    def _has_both_points(self) -> Self:
        for kind in SETS:
            if len({self.test(point, kind) is None for point in POINTS}) > 1:
                raise ValueError("one of the two points is missing")
        return self

    def test(self, point: Point, kind: Set = "") -> Test | None:
        """What was tested at a point on a set of samples, if it was."""
        found: Test | None = getattr(self, f"{point}{kind}")
        return found

    def figures(self, point: Point, metric: str, kind: Set = "") -> ClientFigures | None:
        """The figures of one metric there."""
        found = self.test(point, kind)
        return None if found is None else found.metrics.get(metric)

    @property
    def tests(self) -> Iterator[Test]:
        """What was tested."""
        found = (self.test(point, kind) for kind in SETS for point in POINTS)
        return (test for test in found if test is not None)


class Last(_Part):
    """The figures of the last round that has some, by metric."""

    received: dict[str, Figures]
    trained: dict[str, Figures]
    round: Ordinal | None = None

    def figures(self, point: Point, metric: str) -> Figures | None:
        """The figures of one metric at one point."""
        by_metric: dict[str, Figures] = getattr(self, point)
        return by_metric.get(metric)


class Chosen(_Part):
    """A figure of the leading metric in the round that was chosen for it."""

    round: Ordinal
    value: Number


class Choice(_Part):
    """The best round for each figure, where there is one."""

    mean: Chosen | None
    pooled: Chosen | None


class Best(_Part):
    """The best rounds by the leading metric, and on which samples they were chosen."""

    chosen_on: Literal["validation", "test"]
    received: Choice
    trained: Choice

    def choice(self, point: Point) -> Choice:
        """The best rounds at one point."""
        found: Choice = getattr(self, point)
        return found


class Unseen(_Part):
    """Clients that were not there in training, after they joined."""

    names: Annotated[list[str], Field(min_length=1)]
    samples: list[Count]
    test_samples: list[Count]
    rounds: Ordinal
    steps: list[Count] = []
    bytes_up_per_client: Amount = 0.0
    """In all rounds together, on average."""
    bytes_down_per_client: Amount = 0.0
    seconds: Amount = 0.0
    received: Test
    trained: Test

    def test(self, point: Point) -> Test:
        """All of them at one point."""
        found: Test = getattr(self, point)
        return found

    @model_validator(mode="after")
    def _has_an_entry_for_each(self) -> Self:
        lists: dict[str, Sized] = {"samples": self.samples, "test_samples": self.test_samples}
        for point in POINTS:
            lists |= {f"{name} {point}": each.per_client for name, each in self.test(point).metrics.items()}
        for name, each in lists.items():
            if len(each) != len(self.names):
                raise ValueError(f"{name} has {len(each)} entries for {len(self.names)} clients that joined")
        if any(client >= len(self.names) for point in POINTS for client in self.test(point).diverged):
            raise ValueError("somebody diverged who did not join")
        return self


class Spent(_Part):
    """What one client spent, and by which noise (as a multiple of the clip), sampling rate and number of steps."""

    epsilon: Amount | None
    """Nothing, if it is not finite."""
    noise: Amount
    rate: Annotated[float, Field(ge=0, le=1)]
    steps: Count
    sums: Count = 0
    """Noised sums over the samples that were told besides (prototypes, class counts), and their noise."""
    sum_noise: Amount = 0.0


class Guarantee(_Part):
    """Differential privacy of each training sample, or of each client: what all rounds together have spent of it."""

    unit: Literal["sample", "client"]
    epsilon: Amount | None
    """The most that any client has spent."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    budget: Amount | None
    clip: Amount
    accountant: str
    per_client: list[Spent]

    @property
    def sentence(self) -> str:
        """The guarantee in a few words."""
        spent = "no finite epsilon" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"
        return f"{spent} for each {self.unit} (delta {self.delta:g})"


class Result(_Part):
    """A finished run."""

    format: Literal[2]
    fedgraft: str = ""
    method: str
    label: str = ""
    params: dict[str, Any]
    tuned: dict[str, float | int] = {}
    """What tuning chose: the learning rate, and numbers of the method."""
    reconstruction: bool
    headline: Point
    shows: dict[str, str] = {}
    task: str = ""
    metrics: Annotated[list[MetricInfo], Field(min_length=1, max_length=100)]
    """What was measured; the first leads."""
    partition: str = ""
    clients: Annotated[int, Field(ge=1, le=10**6)]
    seed: Seed
    names: list[str] = Field(default=None)  # type: ignore[arg-type]
    samples: list[Count]
    label_counts: list[list[Count]] | None
    seconds: Amount
    seconds_per_round: Amount = 0.0
    bytes_up_per_client: Amount
    bytes_down_per_client: Amount
    refused: Count = 0
    privacy: list[Guarantee] = []
    versions: dict[str, str]
    digest: dict[str, str] = {}
    rounds: list[Record]
    test_samples: list[Count] = Field(default=None)  # type: ignore[arg-type]
    diverged: dict[Point, list[Count]] = {}
    best: Best
    last: Last
    unseen: Unseen | None = None

    @property
    def leading(self) -> MetricInfo:
        """The metric that judges unless another is asked for."""
        return self.metrics[0]

    @property
    def called(self) -> list[str]:
        """The clients by name: their sites', or numbers."""
        return list(self.names or (f"client {client}" for client in range(self.clients)))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if [record.round for record in self.rounds] != list(range(1, len(self.rounds) + 1)):
            raise ValueError("it does not hold every round")
        lists: dict[str, Sized | None] = {
            "names": self.names, "samples": self.samples, "test_samples": self.test_samples,
            "label_counts": self.label_counts, **dict(self._lists_of_rounds()),
            **{f"privacy {number + 1}": each.per_client for number, each in enumerate(self.privacy)},
        }  # fmt: skip
        for name, each in lists.items():
            if each is not None and len(each) != self.clients:
                raise ValueError(f"{name} has {len(each)} entries for {self.clients} clients")
        if self.label_counts is not None and len({len(row) for row in self.label_counts}) != 1:
            raise ValueError("label_counts has rows of different lengths")
        if self.label_counts is not None and not self.label_counts[0]:
            raise ValueError("label_counts tells of no classes")
        said = [*self.diverged.values(), *(test.diverged for record in self.rounds for test in record.tests)]
        if any(client >= self.clients for each in said for client in each):
            raise ValueError("somebody diverged who is no client")
        if _depth(self.params) > _DEEPEST:
            raise ValueError("params are nested too deeply")
        return self

    @model_validator(mode="after")
    def _measures_what_it_says(self) -> Self:
        known = {metric.name: metric for metric in self.metrics}
        if len(known) != len(self.metrics):
            raise ValueError("two metrics have one name")
        for where, found in self._measured():
            if found.keys() != known.keys():
                raise ValueError(f"{where} tells of other metrics than {', '.join(known)}")
            for name, figures in found.items():
                each = figures.per_client if isinstance(figures, ClientFigures) else []
                if not known[name].possible((figures.mean, figures.pooled, *each)):
                    raise ValueError(f"{where} has {name} that cannot be")
        return self

    def _measured(self) -> Iterator[tuple[str, Mapping[str, Figures]]]:
        for record in self.rounds:
            for number, test in enumerate(record.tests):
                yield f"test {number + 1} of round {record.round}", test.metrics
        for point in POINTS:
            yield f"last.{point}", getattr(self.last, point)
            if self.unseen is not None:
                yield f"unseen.{point}", self.unseen.test(point).metrics

    def _lists_of_rounds(self) -> Iterator[tuple[str, Sized | None]]:
        for record in self.rounds:
            yield f"test_samples of round {record.round}", record.test_samples
            for number, test in enumerate(record.tests):
                for name, figures in test.metrics.items():
                    yield f"{name} in test {number + 1} of round {record.round}", figures.per_client


def _depth(value: Any) -> int:
    """How deeply lists and objects are nested; walked level by level, so that depth itself does no harm."""
    level, depth = [value], 0
    while level := [
        inner
        for each in level
        if isinstance(each, list | Mapping)
        for inner in (each.values() if isinstance(each, Mapping) else each)
    ]:
        depth += 1
    return depth


def complaint(kind: type[BaseModel], value: Any) -> str | None:
    """Say in a few words what is wrong with what was read, or nothing."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return complained(error)
    except RecursionError:
        return "it is nested too deeply"
    return None


def complained(error: ValidationError) -> str:
    """What is wrong, in a few words."""
    found = error.errors(include_url=False, include_input=False)
    lacking = [str(each["loc"][0]) for each in found if each["type"] == "missing" and len(each["loc"]) == 1]
    if lacking:
        return f"it lacks {', '.join(sorted(lacking))}"
    where = ".".join(str(part) for part in found[0]["loc"])
    what = found[0]["msg"].removeprefix("Value error, ")
    return f"{where}: {what[0].lower()}{what[1:]}" if where else what
