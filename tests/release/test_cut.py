"""The version stands in three files, and in all of them it is the same."""

import datetime
import shutil
from pathlib import Path

import pytest

from release.cut import PACKAGE, ROOT, cut, stated


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / PACKAGE).parent.mkdir(parents=True)
    for name in stated():
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_files_agree() -> None:
    versions = {version for version in stated().values() if version is not None}
    assert len(versions) == 1, stated()


def test_a_version_is_written_everywhere_and_the_changelog_begins_anew(tree: Path) -> None:
    before = (tree / "CHANGELOG.md").read_text("utf-8")
    cut("7.1.0", datetime.date(2026, 11, 17), tree)
    cut("7.2.0", datetime.date(2027, 1, 2), tree)
    assert set(stated(tree).values()) == {"7.2.0"}
    after = (tree / "CHANGELOG.md").read_text("utf-8")
    places = [after.index(f"## [{name}") for name in ("Unreleased]", "7.2.0] - 2027-01-02", "7.1.0] - 2026-11-17")]
    assert places == sorted(places)
    assert after.endswith(before.split("## [Unreleased]\n")[1])
    citation = (tree / "CITATION.cff").read_text("utf-8")
    assert citation.count("date-released: ") == 1
    assert "version: 7.2.0\ndate-released: 2027-01-02\n" in citation


@pytest.mark.parametrize("version", ["v7.1.0", "7.1", "7.1.0rc1"])
def test_what_is_no_version_changes_nothing(tree: Path, version: str) -> None:
    before = stated(tree)
    with pytest.raises(SystemExit, match="three numbers"):
        cut(version, datetime.date(2026, 11, 17), tree)
    assert stated(tree) == before
