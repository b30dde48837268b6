"""The figure that SECURITY.md and docs/deployment.md give for what first uploads tell about labels."""

from pathlib import Path

import pytest

from trials.labels import misplaced

ROOT = Path(__file__).parents[2]


def test_the_first_uploads_of_fedavg_tell_who_holds_which_classes() -> None:
    wrong, blind = misplaced("dirichlet:0.5", "digits", 10, 0)
    assert blind == pytest.approx(0.432, abs=0.001)
    assert 0.03 < wrong < 0.06


def test_both_pages_say_so_and_how_to_repeat_it() -> None:
    for page in (ROOT / "SECURITY.md", ROOT / "docs" / "deployment.md"):
        text = " ".join(page.read_text("utf-8").split())
        assert "3.5 to 8.1 %" in text
        assert "python -m trials.labels" in text
        assert "the server does not know" not in text
