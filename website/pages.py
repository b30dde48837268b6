"""Pages as they lie in the checkout, made ready for the site: links, lists, and where each goes."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PROJECT = {
    "README.md": "project/readme.md",
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
}
"""Pages outside of docs/, and where they are on the site."""
METHODS = "src/fedgraft/methods"
MADE = {
    METHODS: "reference/methods/index.md",
    "src/fedgraft/cli": "reference/cli.md",
    "src/fedgraft/runs/config.py": "reference/configuration.md",
}
"""Pages that are made, by what links to them lead to in the checkout: MkDocs looks whether they hold."""
LINK = re.compile(r"(?<!\\)(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
ITEM = re.compile(r"( *)(?:[-*+]|\d+\.)( +)\S")
FENCE = re.compile(r" *(```|~~~)")


def places() -> dict[str, str]:
    """Every file of the checkout that the site shows, and its place there."""
    inside = {
        path.relative_to(ROOT).as_posix(): _place(path.relative_to(ROOT / "docs"))
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.is_file() and path.suffix in (".md", ".json", ".png", ".svg", ".css", ".html")
    }
    return PROJECT | inside


def _place(path: Path) -> str:
    return path.with_name("index.md").as_posix() if path.name == "README.md" else path.as_posix()


def made() -> dict[str, str]:
    """Every file of the checkout of which a page of the site is made, and its place there."""
    tutorials = {file: f"tutorials/{file.stem.partition('-')[2]}.md" for file in (ROOT / "docs/tutorials").glob("*.py")}
    methods = {
        file: f"reference/methods/{file.stem.replace('_', '-')}.md" for file in (ROOT / METHODS).glob("[!_]*.py")
    }
    return MADE | {file.relative_to(ROOT).as_posix(): place for file, place in (tutorials | methods).items()}


def copy(out: Path) -> None:
    """Copy them, with links that hold on the site."""
    known = places()
    linked = known | made()
    for source, place in known.items():
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text = relink((ROOT / source).read_text("utf-8"), source, place, linked)
            target.write_text(relist(text), "utf-8")
        else:
            shutil.copy(ROOT / source, target)


# ---- links


def relink(text: str, source: str, place: str, known: dict[str, str]) -> str:
    """Links to files of the checkout lead to their places; what the site does not show is only named."""

    def moved(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        path, mark, anchor = target.partition("#")
        if not path or ":" in path:
            return found.group()
        meant = _normal(PurePosixPath(source).parent / path)
        if meant not in known and (ROOT / meant).is_dir():
            meant = f"{meant}/README.md"
        if meant not in known:
            assert (ROOT / meant).exists(), f"{source} links to {target}, which is not there"
            return words
        return f"{picture}[{words}]({os.path.relpath(known[meant], PurePosixPath(place).parent)}{mark}{anchor})"

    return "\n".join(_outside_of_code(text.split("\n"), lambda line: LINK.sub(moved, line)))


def _normal(path: PurePosixPath) -> str:
    return os.path.normpath(str(path)).replace(os.sep, "/")


def _outside_of_code(lines: Iterable[str], change: Callable[[str], str]) -> Iterator[str]:
    fenced = False
    for line in lines:
        fenced ^= bool(FENCE.match(line))
        yield line if fenced else change(line)


# ---- lists


def relist(text: str) -> str:
    """Lists as MkDocs reads them: a blank line before the first item, four spaces for each level."""
    done: list[str] = []
    levels: list[int] = []  # where the text of each open item begins
    fenced = False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        indent = len(line) - len(line.lstrip(" "))
        item = None if fenced else ITEM.match(line)
        before = done[-1].strip() if done else ""
        if line.strip() and (item or not before or indent >= (levels[-1] if levels else 0)):
            while levels and indent < levels[-1]:
                levels.pop()
        if item and not levels and indent >= 4:  # code
            item = None
        if item and not levels and before and not (done and ITEM.match(done[-1])) and not _open(done):
            done.append("")
        shift = 4 * len(levels) + max(0, indent - levels[-1]) if levels else indent
        done.append(" " * shift + line.lstrip(" ") if line.strip() else line)
        if item:
            levels.append(len(item.group(1)) + len(item.group().rstrip()) - len(item.group(1)) - 1)
    return "\n".join(done)


def _open(done: list[str]) -> bool:
    """Whether the line before belongs to an item."""
    for line in reversed(done):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
        if not line.startswith(" "):
            return False
    return False
