"""The pages of docs/results are what the measurements beside them say, and these say how they were made."""

import json

import pytest

from benchmarks import partners
from docs.agenda import RESULTS
from docs.evidence import PAGES, PARTITIONS, board, render
from docs.paper_page import Words
from fedgraft.runs import measurement, reproduce
from fedgraft.runs.measurement import Measurement, command, differing, scale_of

RUNS = [run for each in measurement.read(RESULTS).values() for run in each]


@pytest.mark.xdist_group("results")  # one process draws the board's intervals
@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_stale(page: str) -> None:
    assert render(page) == (RESULTS / f"{page}.md").read_text("utf-8"), "`make results` makes them anew"


@pytest.mark.xdist_group("results")
def test_the_board_with_tables_that_sort_is_not_stale() -> None:
    assert board().page() == (RESULTS / "board.html").read_text("utf-8"), "`make results` makes it anew"


def test_every_measurement_belongs_to_a_cell_and_says_how_to_repeat_it() -> None:
    assert len(RUNS) >= 74
    for run in RUNS:
        told = reproduce.recognised(run.config)
        assert told is not None, run.command
        assert told.name == run.recipe
        assert run.scale == scale_of(told, run.config)
        assert run.command == command(run.method, run.recipe, run.settings, run.seed)
        assert run.settings == differing(run.config, run.recipe)
        assert run.machine, run.command
        assert len(run.rounds) == len(run.trained.pooled) == len(run.received.mean)


def _one(method: str, seed: int) -> Measurement:
    wanted = ("fedapa", method, seed, "cifar10")
    return next(run for run in RUNS if (run.recipe, run.method, run.seed, run.config.dataset) == wanted)


def test_figures_are_those_that_were_measured() -> None:
    # as docs/results had them before they were kept in this form
    assert [round(100 * (_one("fedper", seed).trained.pooled[-1] or 0), 2) for seed in (0, 1, 2)] == [
        81.78,
        82.89,
        82.25,
    ]
    assert round(100 * (_one("fedapa:share=all", 1).received.pooled[-1] or 0), 2) == 76.40
    assert _one("fedapa", 0).bytes_up == 244_624


def test_methods_are_compared_by_the_rounds_in_which_both_were_tested() -> None:
    """Clipping never acts on draw 0: the same bits, but FedAPA was tested in every round and the other every fifth."""
    words = Words(reproduce.everything(RESULTS)["fedapa"])
    one, other = (words.outcome("table3", f"{name}/cifar10", [0]) for name in ("no-clipping", "fedapa"))
    assert [len(each.runs[0].rounds) for each in (one, other)] == [10, 50]
    assert one.values[0] < other.values[0], "the best of fifty is above the best of ten"
    assert words._between(one, other) == {0: 0.0}
    first, score = _one("fedapa", 0), words.paper.score
    assert first.value(score, within=[50]) == 100 * (first.trained.pooled[-1] or 0)
    assert first.value(score, within=[]) is None


def test_published_figures_below_ours_are_counted() -> None:
    """On CIFAR-100 the paper prints 20.39 for FedAvg and 50.02 to 68.11 for the others; our FedPHP has 71."""
    words = Words(reproduce.everything(RESULTS)["fedapa"])
    assert words.exceeded("table1", "cifar100", by="fedavg/cifar100") == "0 of 12"
    assert words.exceeded("table1", "cifar100", by="pfedla/cifar100") == "7 of 12", "50.02, and 20.39 to 64.55"
    assert words.exceeded("table1", "cifar100", by="fedphp/cifar100") == "12 of 12"
    assert words.exceeded("table1", "cifar100-c10") == "0 of 0", "nothing was measured"


def test_draws_of_the_partition_are_many() -> None:
    told = json.loads(PARTITIONS.read_text("utf-8"))
    assert len(told["top_share"]) == len(told["sizes"]) == 300
    assert told["top_share"][:2] == [0.5731, 0.573]
    assert all(small >= 129 for small, *_ in told["sizes"]), "the paper's smallest client"


def test_learned_matrices_are_of_runs_with_a_command() -> None:
    rows = json.loads((RESULTS / "partners.json").read_text("utf-8"))["matrices"]
    assert len({row["command"] for row in rows}) >= 30
    assert {row["matrix"] for row in rows} == {name for names in partners.MATRICES.values() for name in names}
