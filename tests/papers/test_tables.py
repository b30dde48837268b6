"""The papers' tables as data: figures checked by hand against the printed pages, and every item is there."""

import pytest

from fedgraft.base.errors import UserError
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.papers.tables import QUANTITIES, SCALES, paper, papers
from fedgraft.report.paperfigures import PLOTS
from fedgraft.runs.measurement import cell_config

# read off the papers' pages, not off our files
PRINTED = {
    ("fedapa", "table1", "fedapa/cifar10"): 85.85,
    ("fedapa", "table1", "fedpac/fmnist-c2"): 99.41,
    ("fedapa", "table1", "pfedla/cifar100-c10-50"): 31.22,
    ("fedapa", "table2", "apple/cifar10@kilobytes"): 5087,
    ("fedapa", "table3", "none/cifar10"): 59.71,
    ("fedapa", "table4", "fedapa:mu=0.7/cifar10"): 84.02,
    ("apple", "table1", "local/cifar10"): 63.06,
    ("apple", "table1", "apple/path-patho"): 97.51,
    ("apple", "table1", "heurfedamp/organ"): 86.82,
    ("apple", "table2", "fedfomo:M=1/mnist"): 91.54,
    ("apple", "table2", "apple:mu=0,budget=5/path"): 85.46,
    ("fedppa", "table3", "max-common/fmnist-0.1"): 96.24,
    ("fedppa", "table3", "fedppa/cifar10-0.01"): 98.87,
    ("fedppa", "table4", "fedppa+/mnist-all@global-round"): 36,
    ("fedgpa", "table2", "fedgpa/cifar10-1-20"): 76.73,
    ("fedgpa", "table3", "lga/emnist-1-20"): 82.13,
    ("fedgpa", "table4", "pfedamf/cinic-2-80"): 54.95,
    ("fedgpa", "table5", "scaffold/cifar10-3-20"): 79.51,
    ("fedgpa", "table6", "fedbabu/cifar10-3-20-m100"): 77.61,
    ("fedgpa", "table7", "fedpac/cifar100-1-20@seconds"): 26 * 60 + 3,
    ("fedgpa", "tableA8", "local/cifar100-1s-80"): 19.93,
    ("fedgpa", "tableA9", "fedgpa/emnist-d-1"): 77.01,
}
ITEMS = {
    "fedapa": "figure1 table1 table2 table3 figure2 table4",
    "apple": "figure1 figure2 table1 table2 figure3 figure4 figure5 figure6 figure7 figure8 table3",
    "fedppa": "figure1 table1 figure2 table2 figure3 figure4 figure5 figure6 table3 table4",
    "fedgpa": "table1 figure1 figure2 table2 figure3 table3 table4 figure4 table5 figure5 table6 table7 figure6 "
    "figure7 tableA8 tableA9",
}


@pytest.mark.parametrize(("where", "printed"), PRINTED.items(), ids=[" ".join(where) for where in PRINTED])
def test_published_figures_are_those_of_the_page(where: tuple[str, str, str], printed: float) -> None:
    name, item, cell = where
    found = {each.name: each.published for each in paper(name).item(item).cells}
    assert found[cell] == printed


def test_every_table_and_figure_is_there_and_runs_or_says_why_not() -> None:
    assert {name: set(told.items) for name, told in papers().items()} == {n: set(i.split()) for n, i in ITEMS.items()}
    for told in papers().values():
        for item in told.items.values():
            assert bool(item.cells or item.plots) != bool(item.not_run), item.name
            assert set(item.plots) <= set(PLOTS)
            assert item.plots or not item.name.startswith("figure") or item.not_run


@pytest.mark.parametrize("name", recipes())
def test_every_cell_is_a_run_that_could_be_asked_for(name: str) -> None:
    told = paper(name)
    assert set(told.scales) == set(SCALES)
    for item in told.items.values():
        assert len({cell.name for cell in item.cells}) == len(item.cells), item.name
    for method, column in {(cell.method, cell.column) for _, cell in told.cells}:
        cell = next(cell for _, cell in told.cells if (cell.method, cell.column) == (method, column))
        config = cell_config(told, cell, 1)
        METHODS.make(config.method, **config.params)
        assert cell.quantity in QUANTITIES
        assert config.seed == 1


def test_both_readings_of_none_and_the_budgets_without_proximal_term_are_there() -> None:
    methods = {cell.row: cell.method for cell in paper("fedapa").item("table3").cells}
    assert methods["none"] == "fedapa:clip=false,mu=0,normalise=false"
    assert methods["own-weight-learned"] == "fedapa:clip=false,self_weight=false,normalise=false"
    budgets = {cell.row for cell in paper("apple").item("table2").cells}
    assert {f"apple:mu=0,budget={budget}" for budget in (11, 7, 5, 2, 1)} <= budgets


def test_cells_are_chosen_by_pattern() -> None:
    table = paper("fedapa").item("table1")
    assert [cell.name for cell in table.chosen(["fedapa/cifar10"])] == ["fedapa/cifar10"]
    assert len(table.chosen(["fedapa/*"])) == 12
    with pytest.raises(UserError, match="no cell is called 'fedapa/cifar11'; did you mean 'fedapa/cifar10'"):
        table.chosen(["fedapa/cifar11"])
    with pytest.raises(UserError, match="no table or figure is called 'tabel1'; did you mean 'table1'"):
        paper("fedapa").item("tabel1")
