"""Every block of commands and of Python in README and docs is run, or says in a comment why it is not.

A page has a folder of its own with made-up data (`tests/world.py`), in which its blocks are run in their order; those
of the pages in `LONG` by `make test-all` alone. That commands and options are there is looked at on every page. Blocks
are run at a reduced size by these rules:

- numbers of rounds, seeds, trials, draws, processes and shadow models are those of `SMALL`, whatever the page says;
- `all` methods are two, and so are those of `recommend`, unless the page names some;
- datasets that would have to be fetched are 1,000 made-up samples under the same name;
- Python whose first line is `# NAME.py` is also written into that file;
- `resume` may say that the run is complete, as nothing interrupted it;
- `reproduce` says which runs it would make, and makes none (tests/papers and tests/runs make some);
- `pip install` is not run, but extras have to be declared; `make` is not run, but its targets have to be there.
"""

import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from program import Program
from world import datasets, furnish, names

from website.blocks import Block, blocks, inline, pages
from website.pages import ROOT

SMALL = {
    "rounds": 2,
    "seeds": 1,
    "workers": 1,
    "budget": 4,
    "tune": 3,
    "parallel": 1,
    "evaluate_every": 2,
    "shadows": 2,
}
SECONDS = 900.0
"""For one command on a machine that is busy with other things; an idle one needs seconds."""
FEW = ("fedper", "ditto")
PAGES = [page for page in pages() if any(block.commands or block.language == "python" for block in blocks(page))]
LONG = {"docs/clusters.md", "docs/how-to.md", "docs/privacy.md", "docs/report.md"}
"""They take minutes, and README runs the same commands with fewer of their options."""


@pytest.fixture(scope="session")  # half a second in every process: pages are better shared out than it
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "datasets"
    datasets(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.long) if p in LONG else p for p in PAGES])
def test_its_blocks_run(page: str, tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path / "reader")
    monkeypatch.setenv("FEDGRAFT_DATA", str(given))
    monkeypatch.chdir(tmp_path / "reader")
    known = names()
    for block in blocks(page):
        for line in block.commands:
            if not block.why_not(line):
                type_in(shlex.split(line, comments=True), f"{page}, line {block.line}: {line}")
        if block.language == "python" and not block.why_not(block.text):
            if file := re.match(r"# (\w+\.py)\n", block.text):
                Path(file.group(1)).write_text(block.text)
            exec(compile(small_python(block), f"{page}:{block.line}", "exec"), known)


def type_in(words: Sequence[str], where: str) -> None:
    """Run a command as somebody who types it."""
    match list(words):
        case ["fedgraft", *rest]:
            done = Program(*small(rest)).wait(SECONDS)
            complete = rest[0] == "resume" and "is complete" in done.stderr
            assert done.returncode == 0 or complete, f"{where}\n{done.stdout}{done.stderr}"
        case ["pip", "install", *rest]:
            assert extras(rest) <= declared(), where
        case ["make", *rest]:
            assert {word for word in rest if "=" not in word} <= targets(), where
        case ["cd", folder]:
            os.chdir(folder)
        case _:
            pytest.fail(f"{where}: neither a command that this test can run nor marked `<!-- not run: REASON -->`")


def small(words: Sequence[str]) -> list[str]:
    """The same command at a reduced size."""
    command, options = accepted(words)
    if command == "reproduce":
        told = {"--list", "--show", "--plot", "--dry-run"} & {*words}
        return [*words, *([] if told else ["--dry-run"])]
    found = [each for word in words for each in (FEW if word == "all" else (word,))]
    if command == "recommend" and "--method" not in words:
        found += [each for name in FEW for each in ("--method", name)]
    flags = {name: value for name, value in SMALL.items() if name in options and command != "resume"}
    if "--tune" not in words:
        flags.pop("tune", None)
    return [*found, *(word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value)))]


def small_python(block: Block) -> str:
    text = block.text
    for name in ("rounds", "seeds"):
        text = re.sub(rf"\b{name}=\d+", f"{name}={SMALL[name]}", text)
    more = f"rounds={SMALL['rounds']}, seeds={SMALL['seeds']}"
    return text.replace("fg.recommend(", f"fg.recommend(methods={FEW}, {more}, data=")


@cache
def program() -> Any:
    """The whole command line, which takes a while to put together."""
    from fedgraft.cli import app

    return typer.main.get_command(app)


def accepted(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command that is meant and its options by name."""
    at: Any = program()
    path = []
    for word in words:
        if word not in getattr(at, "commands", {}):
            break
        at = at.commands[word]
        path.append(word)
    return " ".join(path), {each.name: each for each in at.params}


# ---- what is not run is looked at


def extras(words: Sequence[str]) -> set[str]:
    return {name for word in words for found in re.findall(r"\[(.+)\]", word) for name in found.split(",")}


def declared() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))


def test_there_are_pages_with_blocks() -> None:
    """So many that none was lost by a rule that finds less than before."""
    found = [block for page in pages() for block in blocks(page)]
    assert sum(len(block.commands) for block in found) > 90
    assert sum(block.language == "python" for block in found) > 15


def test_a_reason_is_a_sentence_and_names_files_that_are_there() -> None:
    for block in (block for page in pages() for block in blocks(page)):
        for words, reason in block.left:
            assert len(reason) > 20, (block.page, block.line, reason)
            assert not words or words in block.text, (block.page, block.line, f"no line has {words}")
            for file in re.findall(r"(?:tests|docs|trials)/[\w/.-]+", reason):
                assert (ROOT / file.rstrip(".")).exists(), (block.page, block.line, file)


def commands() -> Iterator[tuple[str, str]]:
    """Those in sentences, and those in blocks."""
    for page in pages():
        yield from ((page, line) for line in inline(page))
        for block in blocks(page):
            lines = (line for line in block.commands if not block.why_not(line))
            yield from ((page, line) for line in lines if line.startswith("fedgraft "))


def test_commands_are_commands_with_these_options() -> None:
    for page, line in commands():
        words = shlex.split(line, comments=True)[1:]
        command, options = accepted(words)
        assert command, f"{page}: `{line}`"
        flags = {flag for each in options.values() for flag in (*each.opts, *each.secondary_opts)}
        for word in words:
            if word.startswith("--") and word != "--help":
                assert word.partition("=")[0] in flags, f"{page}: `{line}` has {word}, which `{command}` has not"


def test_modules_that_pages_name_are_there() -> None:
    for page in pages():
        for name in re.findall(r"python3? -m ([\w.]+)", (ROOT / page).read_text("utf-8")):
            assert name in ("venv", "pip") or importlib.util.find_spec(name.rstrip(".")), f"{page}: python -m {name}"
