"""What a result.json has to look like, so that whatever else lies in its place is refused in a sentence.

A result is written by us and read by nobody but us, as a rule; a file that was cut, edited or forged must not end in a
traceback, nor in a page that is wrong. Fields that later versions add pass.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedgraft.core.evaluation import POINTS, Point

LARGEST = 1e100
"""Beyond this a number is none: its square, or a sum of a few, would overflow."""
_DEEPEST = 30

Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=10**18)]
Ordinal = Annotated[int, Field(ge=1, le=10**9)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class Figures(_Part):
    """Accuracies over all clients."""

    mean: Share | None
    pooled: Share | None


class Test(Figures):
    """All clients on one set of samples, at one point."""

    loss: Number | None = None
    per_client: list[Share | None]
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
    accepted: Count = 0
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
        for kind in ("", "_validation", "_global"):
            if len({f"{point}{kind}" in self.model_fields_set for point in POINTS}) > 1:
                raise ValueError("one of the two points is missing")
        return self

    @property
    def tests(self) -> Iterator[Test]:
        """What was tested."""
        parts = (f"{point}{kind}" for kind in ("", "_validation", "_global") for point in POINTS)
        return (getattr(self, part) for part in parts if part in self.model_fields_set)


class Last(_Part):
    """The figures of the last round that has some."""

    received: Figures
    trained: Figures
    round: Ordinal | None = None


class Chosen(_Part):
    """A figure in the round that was chosen for it."""

    round: Ordinal
    accuracy: Share


class Choice(_Part):
    """The best round for each figure, where there is one."""

    mean: Chosen | None
    pooled: Chosen | None


class Best(_Part):
    """The best rounds, and on which samples they were chosen."""

    chosen_on: Literal["validation", "test"]
    received: Choice
    trained: Choice


class Result(_Part):
    """A finished run."""

    fedgraft: str = ""
    method: str
    params: dict[str, Any]
    reconstruction: bool
    headline: Point
    shows: dict[str, str] = {}
    clients: Annotated[int, Field(ge=1, le=10**6)]
    seed: Count
    names: list[str] = Field(default=None)  # type: ignore[arg-type]
    samples: list[Count]
    label_counts: list[list[Count]] | None
    seconds: Amount
    seconds_per_round: Amount = 0.0
    bytes_up_per_client: Amount
    bytes_down_per_client: Amount
    refused: Count = 0
    versions: dict[str, str]
    digest: dict[str, str] = {}
    rounds: list[Record]
    test_samples: list[Count] = Field(default=None)  # type: ignore[arg-type]
    diverged: dict[Point, list[Count]] = {}
    best: Best
    last: Last

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if [record.round for record in self.rounds] != list(range(1, len(self.rounds) + 1)):
            raise ValueError("it does not hold every round")
        lists: dict[str, Sized | None] = {
            "names": self.names, "samples": self.samples, "test_samples": self.test_samples,
            "label_counts": self.label_counts, **dict(self._lists_of_rounds()),
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

    def _lists_of_rounds(self) -> Iterator[tuple[str, Sized | None]]:
        for record in self.rounds:
            yield f"test_samples of round {record.round}", record.test_samples
            for number, test in enumerate(record.tests):
                yield f"test {number + 1} of round {record.round}", test.per_client


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
        found = error.errors(include_url=False, include_input=False)
        lacking = [str(each["loc"][0]) for each in found if each["type"] == "missing" and len(each["loc"]) == 1]
        if lacking:
            return f"it lacks {', '.join(sorted(lacking))}"
        where = ".".join(str(part) for part in found[0]["loc"])
        what = found[0]["msg"].removeprefix("Value error, ")
        return f"{where}: {what[0].lower()}{what[1:]}" if where else what
    except RecursionError:
        return "it is nested too deeply"
    return None
