"""Use the model in this folder: `python model.py rows.csv > answers.csv`. Needs torch, and nothing of fedgraft.

From Python: ``model = load(folder)``, then ``model.answers(samples)``, or ``model.prepared(rows)`` first where the
samples are rows of a table. `model.pt2` is the whole model, with the scaling of pixels before the network and the
probabilities (or the target's own unit) behind it; `model.json` says what goes in and what comes out.
"""

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

MISSING = frozenset({"", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", "<NA>"})


@dataclass(frozen=True)
class Exported:
    """A model and what is known of it."""

    facts: Mapping[str, Any]
    preparation: Mapping[str, Any] | None
    network: Any

    def answers(self, samples: torch.Tensor) -> torch.Tensor:
        """Return a probability for each class, or values: a row for each sample."""
        return self.both(samples)[0]

    def both(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the answers, and the outputs of the network that they were made of."""
        parts = torch.split(samples, 500 if self.facts["batch"] is None else int(self.facts["batch"]))
        with torch.no_grad():
            given = [self.network(part) for part in parts]
        return torch.cat([each[0] for each in given]), torch.cat([each[1] for each in given])

    def prepared(self, rows: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """Turn rows of a table, column by column as texts, into samples."""
        if not self.preparation or not self.preparation.get("inputs") or self.preparation.get("window"):
            raise ValueError("this model's samples are no rows of a table: model.json says what they are")
        return torch.tensor([_sample(row, self.preparation["inputs"]) for row in rows], dtype=torch.float32)


def load(folder: str | Path) -> Exported:
    """Load the model of a folder."""
    folder = Path(folder)
    preparation = folder / "preparation.json"
    return Exported(
        facts=json.loads((folder / "model.json").read_text("utf-8")),
        preparation=json.loads(preparation.read_text("utf-8")) if preparation.exists() else None,
        network=torch.export.load(folder / "model.pt2").module(),
    )


def _sample(row: Mapping[str, str], inputs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Turn one row into numbers: words into ones and zeros, numbers to mean 0 and deviation 1."""
    numbers: list[float] = []
    for each in inputs:
        text = (row.get(each["name"]) or "").strip()
        gone = text in MISSING
        if gone and not each.get("indicator") and each["name"] not in row:
            raise ValueError(f"there is no column {each['name']}")
        if each["kind"] == "category":
            values = each.get("values", [])
            word = _word(text)
            numbers += [float(not gone and word == value) for value in values]
            numbers.append(float(not gone and word not in values))
        else:
            value = math.nan if gone else _days(text) if each["kind"] == "date" else float(text)
            mean = each.get("mean", 0.0)
            numbers.append(0.0 if gone else (value - mean) / each.get("deviation", 1.0))
        if each.get("indicator"):
            numbers.append(float(gone))
    return numbers


def _word(text: str) -> str:
    return text[:100]


def _days(text: str) -> float:
    when = datetime.fromisoformat(text)
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)  # noqa: UP017 - for older Pythons too
    return when.timestamp() / 86400


def table(facts: Mapping[str, Any], answers: torch.Tensor) -> tuple[list[str], list[list[str]]]:
    """Answers as a table: its columns, and a row for each sample."""
    names = [str(name) for name in facts["answers"]]
    cells = [[f"{value:.6g}" for value in row] for row in answers.flatten(1).tolist()]
    if facts["kind"] == "values":
        return names, cells
    best = [names[int(number)] for number in answers.flatten(1).argmax(dim=1)]
    return ["answer", *names], [[word, *row] for word, row in zip(best, cells, strict=True)]


def main(path: str) -> None:
    """Read rows of a table and print the answers."""
    model = load(Path(__file__).parent)
    with Path(path).open(newline="", encoding="utf-8-sig") as stream:
        samples = model.prepared(list(csv.DictReader(stream, skipinitialspace=True)))
    columns, rows = table(model.facts, model.answers(samples))
    csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python model.py rows.csv")
    main(sys.argv[1])
