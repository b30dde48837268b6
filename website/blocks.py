"""Blocks of code on a page: which are commands, which are Python, and which a page says not to run, and why.

A block that a test cannot run has a comment before it, which no reader sees:

    <!-- not run: REASON -->                   the whole block
    <!-- not run, lines with WORDS: REASON --> only the lines that have these words
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from website.pages import FENCE, ITEM, PROJECT, ROOT

PROGRAMS = re.compile(
    r"(?:fedgraft|pip|make|cd|ls|sbatch|srun|torchrun|scp|flwr|python3? -m|\.venv/bin/\S+|\. \S+/activate)\b"
)
SHELLS = ("console", "bash", "sh", "shell")
MARK = re.compile(r"<!-- not run(?:, lines with (.+?))?: (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A piece of code: the page and the line where it stands, its language, and what is not to be run of it."""

    page: str
    line: int
    language: str
    text: str
    left: tuple[tuple[str, str], ...] = field(default=())
    """Words of lines that are not run (all lines: ""), with the reason."""

    @property
    def commands(self) -> list[str]:
        """Its command lines, one after another; a line that ends with a backslash goes on in the next one."""
        if not (self.language in SHELLS or (not self.language and self._typed)):
            return []
        whole = self.text.replace("\\\n", " ")
        return [line.strip() for line in whole.split("\n") if line.strip() and not line.lstrip().startswith("#")]

    @property
    def _typed(self) -> bool:
        return any(PROGRAMS.match(line.strip()) for line in self.text.split("\n"))

    def why_not(self, line: str) -> str | None:
        """Why a line of it is not run, if it is not."""
        return next((reason for words, reason in self.left if words in line), None)


def pages() -> list[str]:
    """Every page that people read: those of the checkout, docs/ and the text of the tutorials."""
    below = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*"))
    named = [name for name in below if name.endswith(".md") or name.startswith("docs/tutorials/")]
    return sorted({*PROJECT, *named} - {"CHANGELOG.md", "CODE_OF_CONDUCT.md"})


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    text = (ROOT / page).read_text("utf-8")
    return list(_blocks(page, _prose(text) if page.endswith(".py") else text))


def _prose(notebook: str) -> str:
    """What a notebook says between its cells of code; lines keep their numbers."""
    lines, prose = [], False
    for line in notebook.split("\n"):
        if line.startswith("# %%"):
            prose = "[markdown]" in line
        lines.append(line.removeprefix("#").removeprefix(" ") if prose and not line.startswith("# %%") else "")
    return "\n".join(lines)


def _blocks(page: str, text: str) -> Iterator[Block]:
    lines = text.split("\n")
    marks: list[tuple[str, str]] = []
    at, listed = 0, False
    while at < len(lines):
        line = lines[at]
        if found := MARK.match(line.strip()):
            marks.append((found.group(1) or "", found.group(2)))
        elif FENCE.match(line):
            inside = lines[at + 1 : _closing(lines, at)]
            yield Block(page, at + 1, line.strip().strip("`~").split(" ")[0], "\n".join(inside), tuple(marks))
            at, marks = at + len(inside) + 1, []
        elif line.startswith("    ") and not listed and _begins(lines[at - 1] if at else ""):
            end = _end(lines, at)
            yield Block(page, at + 1, "", "\n".join(each[4:] for each in lines[at:end]).rstrip(), tuple(marks))
            at, marks = end - 1, []
        elif line.strip():
            listed, marks = bool(ITEM.match(line)) or (listed and line.startswith(" ")), []
        at += 1


def _closing(lines: list[str], begin: int) -> int:
    return next(at for at in range(begin + 1, len(lines)) if FENCE.match(lines[at]))


def _begins(before: str) -> bool:
    """Whether indented lines after this one are code, and not more of a paragraph."""
    return not before.strip() or before.startswith(("#", "<!--"))


def _end(lines: list[str], begin: int) -> int:
    """Where indented code ends: at the next line that is neither indented nor empty."""
    at = begin
    while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
        at += 1
    return at


def inline(page: str) -> list[str]:
    """Commands of fedgraft within sentences and tables."""
    text = (ROOT / page).read_text("utf-8")
    return [" ".join(each.split()) for each in re.findall(r"(?<!`)`(fedgraft [a-z][^`]*)`(?!`)", text)]
