"""Every tutorial runs from its first cell to its last in a real Jupyter kernel, worker processes included."""

from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="the extra fedgraft[docs] is not installed")

from website import tutorials

WORDS = {
    "1-first-comparison": ("ditto", "Differences", "client 12"),
    "2-tables": ("fedper", "basel", "answer,no,yes"),
    "3-images": ("fedbn", "lens", "Linear"),
    "4-own-method": ("between:beta=0.9", "ditto"),
    "5-tune-and-report": ("--lr", "toprule", "report.html"),
    "6-deploy": ("what leaves: weights", "[0, 0, 0]", "answers"),
    "7-privacy": ("epsilon 4", "fedproto"),
}
"""What somebody who runs it has to see."""


def test_all_are_here() -> None:
    assert [path.stem for path in tutorials.notebooks()] == list(WORDS)


LONG = {"5-tune-and-report", "6-deploy", "7-privacy"}
"""They take minutes; the commands of README and the tests of `deploy demo` and `deploy init` do most of it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in WORDS])
def test_it_runs(name: str, tmp_path: Path) -> None:
    shown = tutorials.as_page(tutorials.run(tutorials.FOLDER / f"{name}.py", tmp_path), "")
    assert "Traceback" not in shown
    for word in WORDS[name]:
        assert word in shown, shown
