"""Give the tree a version: `make version VERSION=0.2.0`, before the commit that is tagged.

The version stands in the package, in CITATION.cff and, dated, in the changelog, where an empty list of what is not
released yet begins above it.
"""

import argparse
import datetime
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "src/fedgraft/base/version.py"
UNRELEASED = "## [Unreleased]\n"


def stated(root: Path = ROOT) -> dict[str, str | None]:
    """The version as each of the three files has it; none in the changelog before the first release."""
    found = {
        PACKAGE: re.search(r'^__version__ = "(.+)"$', (root / PACKAGE).read_text("utf-8"), re.MULTILINE),
        "CITATION.cff": re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE),
        "CHANGELOG.md": re.search(r"^## \[(\d.*)\] - ", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE),
    }
    return {name: match[1] if match else None for name, match in found.items()}


def cut(version: str, day: datetime.date, root: Path = ROOT) -> None:
    """Write the version and the day into the three files."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"release: a version is three numbers such as 0.2.0, not {version!r}")
    changes = (root / "CHANGELOG.md").read_text("utf-8")
    if changes.count(UNRELEASED) != 1 or f"## [{version}]" in changes:
        raise SystemExit(f"release: the changelog has no list of what is unreleased, or has {version} already")
    heading = f"{UNRELEASED}\n## [{version}] - {day.isoformat()}\n"
    (root / "CHANGELOG.md").write_text(changes.replace(UNRELEASED, heading), "utf-8")
    _replace(root / PACKAGE, r'^__version__ = ".+"$', f'__version__ = "{version}"')
    _replace(root / "CITATION.cff", r"^date-released: .*\n", "")
    _replace(root / "CITATION.cff", r"^version: .+$", f"version: {version}\ndate-released: {day.isoformat()}")


def _replace(path: Path, pattern: str, text: str) -> None:
    path.write_text(re.sub(pattern, text, path.read_text("utf-8"), flags=re.MULTILINE), "utf-8")


def main() -> None:
    """Take version and day from the command line."""
    words = argparse.ArgumentParser(prog="python -m release.cut", description=__doc__)
    words.add_argument("version")
    words.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.datetime.now(datetime.UTC).date())
    given = words.parse_args()
    cut(given.version, given.date)
    print(f"release: {given.version}; next: make dist, a commit, and git tag v{given.version}")


if __name__ == "__main__":
    main()
