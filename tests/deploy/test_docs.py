"""docs/deployment.md says what the code does."""

from pathlib import Path

from fedgraft.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"


def test_the_table_of_what_crosses_is_the_registry() -> None:
    rows = DOCS.read_text("utf-8").partition("| method | what crosses |\n|---|---|\n")[2].partition("\n\n")[0]
    assert rows.splitlines() == [f"| {name} | {method.sends} |" for name, method in METHODS.items()]
