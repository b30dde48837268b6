"""Tutorials: notebooks as text (`docs/tutorials/*.py`), run in a real Jupyter kernel, and shown with what came out."""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

from website.pages import ROOT

FOLDER = ROOT / "docs" / "tutorials"
SECONDS = 600
BUSY = re.compile("━|^[\u2801-\u28ff] ")
"""Bars of progress, and the turning sign before what is being done."""
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def notebooks() -> list[Path]:
    """Every tutorial, in the order in which they are read."""
    return sorted(FOLDER.glob("*.py"))


def run(path: Path, folder: Path) -> Any:
    """Run a tutorial from its first cell to its last, in a folder of its own; a cell that fails is an error."""
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # where fedgraft is
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "PATH": paths}
    return client.execute(env=environment)


def write(out: Path, execute: bool = True) -> None:
    """Write each as a page, with its outputs where it was run."""
    out.mkdir(parents=True, exist_ok=True)
    for path in notebooks():
        with tempfile.TemporaryDirectory() as folder:
            notebook = run(path, Path(folder)) if execute else jupytext.read(path)
        place = out / f"{path.stem.partition('-')[2]}.md"
        note = f"*This page is a notebook: [{path.name}]({path.name}) opens in Jupyter with jupytext.*"
        place.write_text(as_page(notebook, note), "utf-8")
        (out / path.name).write_text(path.read_text("utf-8"), "utf-8")


def as_page(notebook: Any, note: str) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source.strip():
            shell = cell.source.startswith("!")
            parts.append(f"```{'console' if shell else 'python'}\n{cell.source}\n```")
            said = "".join(each.text for each in cell.get("outputs", ()) if each.output_type == "stream")
            parts += [_text(said), *(_shown(each) for each in cell.get("outputs", ()) if each.output_type != "stream")]
    title, _, rest = "\n\n".join(part for part in parts if part).partition("\n")
    return f"{title}\n\n{note}\n{rest}\n"


def _shown(output: Any) -> str:
    """What a cell gave: text as text; tables of pandas as they are."""
    data = output.get("data", {})
    if "text/html" in data and "<table" in data["text/html"] and "<style" not in data["text/html"]:
        return str(data["text/html"])
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    """What a terminal shows in the end: no colours, no line that was written over, no bar of progress."""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ANSI.sub("", text).rstrip().split("\n")]
    kept = "\n".join(line for line in lines if not BUSY.search(line)).strip("\n")
    return f'```text title="output"\n{kept}\n```' if kept else ""
