"""How a table's rows become numbers: announced by each site in counts and sums, fitted once, kept as JSON.

No row leaves a site. What a site tells of each column is in :class:`Column`, of its target in :class:`Announcement`;
`Fitted.of` needs nothing else. The fitted preparation goes with the run (``preparation.json``), so that new rows are
prepared as those that were trained on. Charters have it too, so numpy waits until rows are prepared.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedgraft.base.errors import UserError, unknown

if TYPE_CHECKING:
    from fedgraft.data.datasets.formats import Array

Kind = Literal["number", "category", "date", "empty"]
WORDS: dict[str, str] = {"number": "numbers", "category": "words", "date": "dates", "empty": "empty"}
MOST_VALUES = 50
"""Different words in a column that is still a category, and no name, text or number of a person."""
MOST_CLASSES = 20
"""Different whole numbers in a target that are taken for classes unless told."""
OFTEN = 3
"""Rows that a word needs before its site tells it: what one person alone has, stays there."""
OTHER = "other"


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Column(_Told):
    """What a site tells of one column of its training rows."""

    kind: Kind
    known: int = Field(0, ge=0, description="rows that have a value")
    missing: int = Field(0, ge=0, description="rows that have none")
    total: float = Field(0.0, description="sum of the values")
    squares: float = Field(0.0, ge=0, description="sum of the squared distances from the site's mean")
    values: tuple[str, ...] = Field((), description="words that at least three rows have")


class Announcement(_Told):
    """What a site tells before a preparation is fitted: nothing but this leaves it."""

    target: str
    kind: Literal["words", "whole", "number"]
    labels: tuple[str, ...] = ()
    """Which classes there are, in all of its rows, if the target has few values."""
    columns: dict[str, Column]


class Input(_Told):
    """A column and how it becomes one or several inputs of a network."""

    name: str
    kind: Literal["number", "category", "date"]
    mean: float = 0.0
    deviation: float = Field(1.0, gt=0)
    values: tuple[str, ...] = ()
    indicator: bool = False
    """Whether a further input says that the cell was missing."""

    @property
    def names(self) -> list[str]:
        """What the inputs are called."""
        words = [f"{self.name}={value}" for value in (*self.values, OTHER)]
        return (words if self.kind == "category" else [self.name]) + [f"{self.name} missing"] * self.indicator


class Fitted(_Told):
    """The preparation of a federation's samples: what its inputs and its classes are."""

    format: Literal[1] = 1
    target: str | None = None
    inputs: tuple[Input, ...] = ()
    labels: tuple[str, ...] = ()
    """What the classes are called, in the order of their numbers."""
    characters: str = ""
    """Of texts: the characters in the order of their tokens; any other character is the token after the last."""
    window: int | None = None
    """Rows or characters in a sample."""

    @property
    def names(self) -> list[str]:
        """What the numbers of a sample are called."""
        return [name for each in self.inputs for name in each.names]

    @classmethod
    def of(
        cls, told: Mapping[str, Announcement], task: str | None = None, window: int | None = None
    ) -> tuple["Fitted", str, list[str]]:
        """Fit the preparation to what the sites told; return it with the task and sentences worth reading."""
        first = next(iter(told.values()))
        task, labels = _labels(told, task)
        notes: list[str] = []
        names = dict.fromkeys(name for each in told.values() for name in each.columns)
        made = [each for name in names if (each := _input(name, told, notes)) is not None]
        if not made:
            raise UserError(f"there is no column to learn {first.target} from")
        return cls(target=first.target, inputs=tuple(made), labels=labels, window=window), task, notes

    def sample_values(self, cells: Mapping[str, "Array"]) -> "Array":
        """Rows x inputs: what a network takes of columns of numbers (NaN where missing) and of words (None there)."""
        import numpy as np

        columns: list[Array] = []
        for each in self.inputs:
            values = cells[each.name]
            if each.kind == "category":
                gone = np.array([value is None for value in values], dtype=bool)
                columns += [values == value for value in each.values]
                columns.append(~gone & ~np.isin(values, np.array(each.values, dtype=object)))
            else:
                gone = np.isnan(values)
                columns.append((np.where(gone, each.mean, values) - each.mean) / each.deviation)
            if each.indicator:
                columns.append(gone)
        with np.errstate(over="ignore"):  # infinite then, and refused as that
            return np.stack(columns, axis=1).astype(np.float32)

    def numbers_of(self, labels: Sequence[str], where: str) -> "Array":
        """Return the numbers of classes that are given by their names."""
        import numpy as np

        number = {label: at for at, label in enumerate(self.labels)}
        for label in labels:
            if label not in number:
                raise unknown(f"class ({self.target or 'a folder'} of {where})", label[:50], number)
        return np.array([number[label] for label in labels], dtype=np.int64)


def announced_task(task: str | None) -> tuple[str | None, int | None]:
    """Split a task's text into its name and its number of outputs."""
    if task is None:
        return None, None
    from fedgraft.core.task import kind_named

    kind, outputs = kind_named(task)
    return kind.name, outputs


def _labels(told: Mapping[str, Announcement], task: str | None) -> tuple[str, tuple[str, ...]]:
    """Say what is learned and which classes there are, if any."""
    name, outputs = announced_task(task)
    target = next(iter(told.values())).target
    kinds = {each.kind for each in told.values()}
    if name not in (None, "classification", "regression"):
        raise UserError(f"a table's target is one column, for classification or regression, not for {name}")
    if name == "regression":
        if "words" in kinds:
            where = next(site for site, each in told.items() if each.kind == "words")
            raise UserError(f"{target} at {where} holds words, which is nothing to predict as a number")
        return task or "regression", ()
    if name is None and kinds == {"number"}:
        return "regression", ()
    labels = list(dict.fromkeys(label for each in told.values() for label in each.labels))
    whole = kinds == {"whole"}
    if name is None and not whole and kinds != {"words"}:
        listed = ", ".join(f"{WORDS.get(each.kind, each.kind)} at {site}" for site, each in list(told.items())[:4])
        raise UserError(f"{target} is {listed}: say with --task whether it is classification or regression")
    if name is None and whole and len(labels) > MOST_CLASSES:
        raise UserError(
            f"{target} has {len(labels)} different whole numbers: say whether they are amounts (--task regression) or "
            "classes (--task classification)"
        )
    return _numbered(target, labels, whole, outputs)


def _numbered(target: str, labels: list[str], whole: bool, outputs: int | None) -> tuple[str, tuple[str, ...]]:
    """Order the classes: whole numbers by size, words by the alphabet; announced numbers stay what they are."""
    ordered = sorted(labels, key=int) if whole else sorted(labels)
    if outputs is not None and whole and all(0 <= int(label) < outputs for label in labels):
        ordered = [str(number) for number in range(outputs)]
    if outputs is not None and len(ordered) > outputs:
        raise UserError(f"{target} has {len(ordered)} classes ({', '.join(ordered[:5])}, ...), not {outputs}")
    if len(labels) < 2:
        raise UserError(
            f"{target} is {labels[0][:50]!r} in every row of every site: there are no two classes to tell apart"
            if labels else f"{target} has no value in any row"
        )  # fmt: skip
    return f"classification:{outputs or len(ordered)}", tuple(ordered)


def _input(name: str, told: Mapping[str, Announcement], notes: list[str]) -> Input | None:
    """Join what the sites told of one column."""
    parts = {site: each.columns[name] for site, each in told.items() if name in each.columns}
    absent = [site for site in told if site not in parts]
    kinds = {part.kind: site for site, part in parts.items() if part.kind != "empty"}
    if not kinds:
        notes.append(f"the column {name} is empty in every training row and left out")
        return None
    if len(kinds) > 1:
        listed = " and ".join(f"{WORDS[kind]} at {site}" for kind, site in kinds.items())
        raise UserError(
            f"the column {name} is {listed}: write it alike everywhere, name it among --categories, or leave it out "
            f"with --ignore {name}"
        )
    if absent:
        notes.append(f"the column {name} is not at {', '.join(absent)}: it is missing in every row there")
    kind = next(iter(kinds))
    indicator = bool(absent) or any(part.missing for part in parts.values())
    if kind == "category":
        values = sorted({value for part in parts.values() for value in part.values})
        if len(values) > MOST_VALUES:
            raise UserError(
                f"the column {name} holds {len(values)} different words, too many for a category (dates are written "
                f"2024-12-31): leave it out with --ignore {name}"
            )
        if not values:
            notes.append(
                f"the column {name} has no word that {OFTEN} training rows of a site share, as with names or texts: "
                f"all of them count as `{OTHER}`, of which nothing can be learned; --ignore {name}?"
            )
        return Input(name=name, kind="category", values=tuple(values), indicator=indicator)
    known = sum(part.known for part in parts.values())
    mean = sum(part.total for part in parts.values()) / known
    # squares about each site's own mean, and of its mean about everybody's: nothing cancels
    spread = sum(
        part.squares + part.known * (part.total / part.known - mean) ** 2 for part in parts.values() if part.known
    )
    deviation = sqrt(spread / known)
    usual = abs(mean) * 1e-9
    assert kind in ("number", "date")
    return Input(
        name=name, kind=kind, mean=mean, deviation=deviation if deviation > usual else 1.0, indicator=indicator
    )


def facts(fitted: Fitted) -> dict[str, Any]:
    """Return a preparation as JSON and TOML have it, without what is as it would be anyway."""
    return fitted.model_dump(mode="json", exclude_defaults=True) | {"format": fitted.format}
