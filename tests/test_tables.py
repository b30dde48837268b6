"""The tables in the pages are what the code says: methods, models, datasets, schemes, and what really crosses."""

import re
from pathlib import Path

import pytest

from docs.tables import PAGES, ROOT, TABLES, fresh
from fedgraft.methods import METHODS


@pytest.mark.parametrize("page", PAGES)
def test_no_table_is_stale(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert "<!-- table: " in text
    assert fresh(text) == text, "`make tables` makes them anew"


def test_every_table_is_on_a_page() -> None:
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == set(TABLES)


def test_every_entry_that_crosses_is_explained() -> None:
    """SECURITY.md says of each entry what it tells about a client's data."""
    page = (Path(ROOT) / "SECURITY.md").read_text("utf-8")
    rows = {
        cells[0]: cells[1:3]
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")][1:-1]) in (3, 6)
    }
    explained = {word for entry in rows for word in entry.split(", ")}
    crossing = ", ".join(cell for name in METHODS.shipped for cell in rows[name][:2])
    used = set(re.sub(r" \([^)]*\)", "", crossing).split(", ")) - {"nothing"}
    assert len(used) > 20
    assert used <= explained
