"""Use the model in this folder: `python model.py new.csv > answers.csv`. Needs torch, and nothing of fedgraft.

What is new is what the model was trained on: a table of rows, image files or a folder of them (with Pillow), or texts.
From Python: ``model = load(folder)``, then ``model.answers(samples)`` for samples of your own, or
``names, samples = model.read(path)`` first. `model.pt2` is the whole model, with the scaling of pixels before the
network and the probabilities (or the target's own unit) behind it; `model.json` says what goes in and what comes out.
"""

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

MISSING = frozenset({"", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", "<NA>"})
ENDINGS = {
    "rows": frozenset({".csv", ".tsv"}),
    "images": frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"}),
    "texts": frozenset({".txt"}),
    "arrays": frozenset[str](),
}
"""In which files each form of samples lies."""


@dataclass(frozen=True)
class Exported:
    """A model and what is known of it."""

    facts: Mapping[str, Any]
    preparation: Mapping[str, Any] | None
    network: Any

    @property
    def form(self) -> str:
        """What a sample is made of: rows of a table, images, texts, or arrays that nobody prepares."""
        told = self.preparation or {}
        form = "rows" if told.get("inputs") else "texts" if told.get("characters") else "arrays"
        return "images" if self.facts["input"]["type"] == "uint8" else form

    def answers(self, samples: torch.Tensor) -> torch.Tensor:
        """Return a probability for each class, or values: a row for each sample."""
        return self.both(samples)[0]

    def both(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the answers, and the outputs of the network that they were made of."""
        parts = torch.split(samples, 500 if self.facts["batch"] is None else int(self.facts["batch"]))
        with torch.no_grad():
            given = [self.network(part) for part in parts]
        return torch.cat([each[0] for each in given]), torch.cat([each[1] for each in given])

    def read(self, path: str | Path) -> tuple[list[str], torch.Tensor]:
        """Read what is new: the names of files (none of rows), and a sample for each file, row or window of rows."""
        files = found(Path(path), self.form)
        if self.form == "rows":
            return [], self.prepared([row for file in files for row in rows_of(file)])
        samples = [self.pixels(file) if self.form == "images" else self.tokens(text_of(file), file) for file in files]
        return list(map(str, files)), torch.stack(samples)

    def prepared(self, rows: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """Turn rows of a table, column by column as texts, into samples: rows, or windows of them."""
        if self.form != "rows" or self.preparation is None:
            raise ValueError("this model's samples are no rows of a table: model.json says what they are")
        numbers = torch.tensor([_sample(row, self.preparation["inputs"]) for row in rows], dtype=torch.float32)
        window = self.preparation.get("window")
        if not window:
            return numbers
        begins = range(0, len(rows) - window + 1, max(1, window // 2))
        if not begins:
            raise ValueError(f"there are {len(rows)} rows, and a sample is made of {window}")
        return torch.stack([numbers[at : at + window] for at in begins])

    def pixels(self, file: str | Path) -> torch.Tensor:
        """Read an image file: bytes, height x width x channels."""
        try:
            from PIL import Image
        except ImportError:
            raise ValueError("image files are read with Pillow: pip install pillow") from None
        height, width, channels = self.facts["input"]["shape"]
        with Image.open(file) as image:
            flat = _shallow(image, file).convert("L" if channels == 1 else "RGB")
            held = torch.frombuffer(bytearray(flat.tobytes()), dtype=torch.uint8)
            picture = held.view(flat.height, flat.width, channels)
        if self.facts["resize"] is not None and picture.shape[:2] != (height, width):
            picture = _resized(picture, self.facts["resize"])
        if picture.shape[:2] != (height, width):
            sizes = f"{picture.shape[1]}x{picture.shape[0]} pixels, and the model takes {width}x{height}"
            raise ValueError(f"{file} has {sizes}: scale it as those that it was trained on")
        return picture

    def tokens(self, text: str, where: str | Path = "the text") -> torch.Tensor:
        """Turn the end of a text into a sample, of which the next character is asked."""
        if self.form != "texts" or self.preparation is None:
            raise ValueError("this model's samples are no texts: model.json says what they are")
        window = self.facts["input"]["shape"][0]
        if len(text) < window:
            raise ValueError(f"{where} has {len(text)} characters, and a sample is made of the last {window}")
        code = {character: number for number, character in enumerate(self.preparation["characters"])}
        return torch.tensor([code.get(character, len(code)) for character in text[-window:]])


def load(folder: str | Path) -> Exported:
    """Load the model of a folder."""
    folder = Path(folder)
    preparation = folder / "preparation.json"
    return Exported(
        facts=json.loads((folder / "model.json").read_text("utf-8")),
        preparation=json.loads(preparation.read_text("utf-8")) if preparation.exists() else None,
        network=torch.export.load(folder / "model.pt2").module(),
    )


def found(path: Path, form: str) -> list[Path]:
    """Return a file, or the files of a folder and those below it, that hold samples of a form."""
    if not path.exists():
        raise ValueError(f"there is nothing at {path}")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    fitting = [file for file in files if file.suffix.lower() in ENDINGS[form] and file.is_file()]
    if not fitting:
        kinds = ", ".join(sorted(ENDINGS[form])) or "arrays alone"
        raise ValueError(f"{path} holds nothing that this model takes ({form}: {kinds})")
    return fitting


def rows_of(file: Path) -> list[dict[str, str]]:
    """Read a table: commas, semicolons and tabs are told apart by the first line."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        comma = max(",;\t", key=stream.readline().count)
        stream.seek(0)
        reader = csv.DictReader(stream, skipinitialspace=True, delimiter=comma)
        rows = []
        for row in reader:
            if any(row.pop(None, [])):  # cells that no column is named for
                columns = f"the {len(reader.fieldnames or [])} columns that its first line names"
                raise ValueError(f"{file} has more cells in line {reader.line_num} than {columns}")
            rows.append(row)
    return [{name: _pointed(cell) for name, cell in row.items()} for row in rows] if comma == ";" else rows


def _pointed(cell: str | None) -> str:
    """Write 3,5 as 3.5: in a table with semicolons a comma stands before the decimals."""
    text = (cell or "").strip()
    whole, comma, rest = text.removeprefix("-").partition(",")
    return text.replace(",", ".") if comma and whole.isdigit() and rest.isdigit() else text


def text_of(file: Path) -> str:
    """Read a text in UTF-8."""
    return file.read_text("utf-8-sig")


def _shallow(image: Any, file: str | Path) -> Any:
    """Return an image with 8 bits for each value; of 16 bits, 65535 becomes 255."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        wanted = "nothing in it says which value is white: save it with 8 or 16 bits"
        raise ValueError(f"{file} is grey with up to 32 bits for a pixel (mode {image.mode}), and {wanted}")
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda value: value * (1 / 257) + 0.5)


def _resized(picture: torch.Tensor, side: int) -> torch.Tensor:
    floats = picture.permute(2, 0, 1)[None].float()
    small = torch.nn.functional.interpolate(floats, size=(side, side), mode="bilinear", antialias=True)
    return small.round_().clamp_(0, 255).to(torch.uint8)[0].permute(1, 2, 0)


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
            value = math.nan if gone else _value(text, each)
            mean = each.get("mean", 0.0)
            numbers.append(0.0 if gone else (value - mean) / each.get("deviation", 1.0))
        if each.get("indicator"):
            numbers.append(float(gone))
    return numbers


def _value(text: str, wanted: Mapping[str, Any]) -> float:
    date = wanted["kind"] == "date"
    try:
        return _days(text) if date else float(text)
    except ValueError:
        kind = "a date such as 2024-12-31" if date else "a number"
        raise ValueError(f"{wanted['name']} is {text[:50]!r}, not {kind}") from None


def _word(text: str) -> str:
    return text[:100]


def _days(text: str) -> float:
    when = datetime.fromisoformat(text)
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)  # noqa: UP017 - for older Pythons too
    return when.timestamp() / 86400


def table(
    facts: Mapping[str, Any], answers: torch.Tensor, names: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Answers as a table: its columns, and a row for each sample; files are called by their names."""
    labels = [str(name) for name in facts["answers"]]
    cells = [[f"{value:.6g}" for value in row] for row in answers.flatten(1).tolist()]
    if facts["kind"] != "values":
        best = [labels[int(number)] for number in answers.flatten(1).argmax(dim=1)]
        labels, cells = ["answer", *labels], [[word, *row] for word, row in zip(best, cells, strict=True)]
    if not names:
        return labels, cells
    return ["file", *labels], [[name, *row] for name, row in zip(names, cells, strict=True)]


def main(paths: Iterable[str]) -> None:
    """Read what is new and print the answers."""
    model = load(Path(__file__).parent)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, path in enumerate(paths):
        names, samples = model.read(path)
        columns, rows = table(model.facts, model.answers(samples), names)
        writer.writerows(rows if number else [columns, *rows])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python model.py FILE_OR_FOLDER ...")
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))
