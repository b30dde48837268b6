"""What the board makes of figures that were made up, worked out by hand."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from docs.board_page import _finding
from fedgraft.base.errors import UserError
from fedgraft.board import record, standing
from fedgraft.board.record import Clients, Entry, Outcome, Record
from fedgraft.cli.app import app
from fedgraft.report import board
from fedgraft.runs.metric import ACCURACY, LOG_LOSS, MetricInfo

Figures = Sequence[Sequence[float | None]]


def entry(method: str, figures: Figures, unseen: float | None = None) -> Entry:
    outcomes = [
        Outcome(
            seed=seed,
            figures=list(values),
            pooled=values[0],
            unseen=[] if unseen is None else [unseen],
            bytes_up=100,
            bytes_down=28,
            seconds=2.0,
        )
        for seed, values in enumerate(figures)
    ]
    return Entry(method=method, state="done", outcomes=outcomes, chosen={"lr": 0.1})


def made(
    methods: Mapping[str, Figures],
    *,
    metric: MetricInfo = ACCURACY,
    names: Sequence[Sequence[str]] = (("a", "b"), ("a", "b")),
    natural: bool = False,
) -> Record:
    return Record(
        setting="made-up", title="Made up", natural=natural, size="tiny", metric=metric,
        terms={"draws": len(names), "trials": 8, "hold_out": 0.2},
        draws=[Clients(seed=seed, names=list(each), unseen=["z"]) for seed, each in enumerate(names)],
        entries=[entry(name, figures, unseen=0.5) for name, figures in methods.items()],
    )  # fmt: skip


ALONE = [[0.5, 0.6], [0.4, 0.8]]
BETTER = [[0.7, 0.6], [0.9, 0.6]]


def test_a_row_by_hand() -> None:
    found = standing.of(made({"local": ALONE, "better": BETTER}))
    assert [row.method for row in found.rows] == ["better", "local"], "the best first"
    row = found.rows[0]
    assert row.mean.mean == pytest.approx((0.65 + 0.75) / 2)
    assert row.mean.deviation == pytest.approx(0.1 / 2**0.5)
    assert row.worst_tenth.mean == pytest.approx((0.6 + 0.6) / 2)
    assert (row.pooled.mean, row.unseen.mean) == pytest.approx((0.8, 0.5))
    assert row.harmed == pytest.approx(1 / 4)
    assert (row.traffic, row.seconds, row.draws) == (128, 2, 2)
    assert row.against["local"].mean == pytest.approx((0.1 + 0.15) / 2)
    assert (row.against["local"].pairs, row.against["local"].seeds) == (4, 2)
    assert "fedavg-ft" not in row.against
    assert found.rows[1].harmed is None, "nobody is harmed by oneself"


def test_a_setting_in_a_line() -> None:
    names = [[f"{draw}{client}" for client in range(10)] for draw in range(2)]
    alone = [[0.5 + 0.01 * client for client in range(10)]] * 2
    above, below = ([[value + by for value in values] for values in alone] for by in (0.2, -0.2))
    mixed = [[value + 0.1 * (-1) ** client for client, value in enumerate(values)] for values in alone]
    methods = {"local": alone, "fedavg-ft": mixed, "better": above, "worse": below, "bad": below}
    found = standing.of(made(methods, names=names))
    assert _finding("Made up", found.rows, ACCURACY) == [
        "Made up", "better, 74.5 ± 0.0", "54.5 ± 0.0", "54.5 ± 0.0", "better", "2", "1",
    ]  # fmt: skip
    few = standing.of(made({"local": ALONE, "better": BETTER}, natural=True))
    assert _finding("Two sites", few.rows, ACCURACY)[3:] == ["", *["too few sites to test"] * 2, "1"]


def test_less_is_better_of_a_loss() -> None:
    found = standing.of(made({"local": BETTER, "other": ALONE}, metric=LOG_LOSS))
    assert [row.method for row in found.rows] == ["other", "local"]
    assert found.rows[0].against["local"].mean == pytest.approx(0.125)
    assert found.rows[0].rank == 1.0


def test_sites_that_are_the_same_in_all_draws_count_once() -> None:
    """Site a gains 0.2 and 0.4, b 0.1 in one draw, c loses 0.1 in the other: means 0.3, 0.1 and -0.1."""
    names = [("a", "b"), ("a", "c")]
    found = standing.of(
        made({"local": [[0.5, 0.5], [0.5, 0.5]], "other": [[0.7, 0.6], [0.9, 0.4]]}, names=names, natural=True)
    )
    difference = found.rows[0].against["local"]
    assert difference.mean == pytest.approx(0.1)
    assert (difference.pairs, difference.better, difference.worse, difference.seeds) == (3, 2, 1, 2)
    assert difference.too_few
    assert difference.interval.low < 0.1 < difference.interval.high
    assert found.rows[0].harmed == pytest.approx(1 / 3), "c, of three sites"


def test_a_draw_without_a_figure_is_no_draw() -> None:
    names = [tuple("abcdefgh")] * 3
    nobody: list[float | None] = [None] * 8
    alone = [[0.5] * 8] * 3
    found = standing.of(made({"local": alone, "other": [[0.7] * 8, [0.8] * 8, nobody]}, names=names, natural=True))
    row = next(row for row in found.rows if row.method == "other")
    difference = row.against["local"]
    assert (row.draws, difference.seeds, difference.pairs) == (2, 2, 8)
    assert difference.interval == pytest.approx((0.2, 0.3))
    assert board.forest(found, "local") is not None


def test_methods_that_do_not_differ_can_be_drawn() -> None:
    found = standing.of(made({"local": ALONE, "same": ALONE}))
    drawn = board.forest(found, "local")
    assert drawn is not None
    assert drawn["marks"][0]["x"] == drawn["zero"]


def test_differences_are_corrected_for_the_number_of_methods() -> None:
    shifts = {"one": 0.1, "two": 0.11, "three": 0.12}
    figures = {name: [[0.2 + 0.01 * client + shift for client in range(10)]] * 2 for name, shift in shifts.items()}
    alone = [[0.2 + 0.01 * client for client in range(10)]] * 2
    names = [[str(client) for client in range(10)]] * 2
    found = standing.of(made({"local": alone, **figures}, names=names))
    rows = {row.method: row.against["local"] for row in found.rows if row.method != "local"}
    assert all(each.corrected == pytest.approx(3 * each.p) for each in rows.values())
    assert all(each.more_than_noise for each in rows.values())


def test_ranks_are_over_draws_and_of_complete_methods_only() -> None:
    told = made({"local": ALONE, "better": BETTER, "half": BETTER[:1]})
    entries = [each if each.method != "half" else each.model_copy(update={"state": "cut short"})
               for each in told.entries]  # fmt: skip
    found = standing.of(told.model_copy(update={"entries": entries}))
    assert {row.method: row.rank for row in found.rows} == {"better": 1.0, "local": 2.0, "half": None}
    assert found.ranks is not None
    assert found.ranks.blocks == 2
    assert "2 of 3 methods are done (1 cut short)" in board.told(found)


def test_a_draw_that_failed_leaves_its_figures_out() -> None:
    told = made({"local": ALONE, "better": BETTER})
    failed = told.entries[1].model_copy(
        update={"state": "failed", "outcomes": [told.entries[1].outcomes[0], Outcome(seed=1, failure="it burst")]}
    )
    found = standing.of(told.model_copy(update={"entries": [told.entries[0], failed]}))
    row = next(row for row in found.rows if row.method == "better")
    assert (row.draws, row.rank, row.against["local"].pairs) == (1, None, 2)


def test_over_settings() -> None:
    one = standing.of(made({"local": ALONE, "better": BETTER, "same": BETTER}))
    two = standing.of(made({"local": BETTER, "better": ALONE, "other": ALONE}))
    found = standing.overall({"one": one, "two": two})
    assert found is not None
    assert found.methods == ("better", "local")
    assert found.ranks.mean == (1.5, 1.5)
    assert standing.overall({"one": one}) is None


def test_nothing_is_known_yet() -> None:
    waiting = [Entry(method="local", state="waiting"), Entry(method="x", state="not admitted", reason="no classes")]
    told = made({}).model_copy(update={"entries": waiting, "metric": None, "draws": []})
    found = standing.of(told)
    assert (found.rows, found.ranks) == ((), None)
    page = board.render({"made-up": found})
    assert "x: not admitted: no classes" in page
    assert "0 of 2 methods are done" in page


# ---- as files


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "made-up.json"
    record.write(path, made({"local": ALONE}))
    assert record.read_all(tmp_path)["made-up"] == made({"local": ALONE})
    path.write_text(path.read_text().replace('"state": "done"', '"state": "mended"'))
    with pytest.raises(UserError, match=r"is damaged: entries\.0\.state"):
        record.read(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="holds no results of a board"):
        record.read(path)
    with pytest.raises(UserError, match="there is no folder"):
        record.read_all(tmp_path / "none")


def test_a_file_of_the_format_before_had_one_machine_for_all_methods(tmp_path: Path) -> None:
    path = tmp_path / "made-up.json"
    found = made({"local": ALONE, "better": BETTER})
    waits = Entry(method="waits", state="waiting")
    record.write(path, found.model_copy(update={"entries": [*found.entries, waits]}))
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "format": 1, "fedgraft": "0.1.0", "machine": "a laptop"}))
    there = record.read(path)
    assert [(each.method, each.fedgraft, each.machine) for each in there.entries] == [
        ("local", "0.1.0", "a laptop"), ("better", "0.1.0", "a laptop"), ("waits", "", "")
    ]  # fmt: skip
    record.write(path, there)
    assert record.read(path) == there
    assert "laptop" in path.read_text().splitlines()[1], "in the method's line"


def test_only_what_had_the_same_protocol_and_clients_is_set_beside_each_other() -> None:
    mine, others = made({"mine": BETTER}), made({"local": ALONE, "mine": ALONE})
    found = record.joined({"made-up": mine}, {"made-up": others})["made-up"]
    assert [each.method for each in found.entries] == ["local", "mine"]
    assert found.entry("mine") == mine.entries[0]
    for other in (
        others.model_copy(update={"terms": {**others.terms, "trials": 9}}),
        others.model_copy(update={"draws": [each.model_copy(update={"names": ["q", "r"]}) for each in others.draws]}),
    ):
        with pytest.raises(UserError, match="cannot be compared"):
            record.joined({"made-up": mine}, {"made-up": other})


# ---- for people


def test_the_page_holds_every_figure_and_escapes_names() -> None:
    told = made({"local": ALONE, "fedavg-ft": ALONE, "<b>": BETTER})
    page = board.render({"made-up": standing.of(told)})
    assert "<b>" not in page
    assert 'data-method="&lt;b&gt;"' in page
    assert page.count('<tr data-method="') == 3
    assert "+12.5" in page
    assert "lr=0.1" in page
    assert not re.search(r'src="|href="http', page), "it asks nobody"


def test_intervals_are_drawn_where_they_are() -> None:
    found = board.forest(standing.of(made({"local": ALONE, "better": BETTER})), "local")
    assert found is not None
    (mark,) = found["marks"]
    assert found["zero"] < mark["x"]
    assert mark["low"] <= mark["x"] <= mark["high"]
    assert [float(tick["text"]) for tick in found["ticks"]] == sorted(float(tick["text"]) for tick in found["ticks"])
    assert board.forest(standing.of(made({"local": ALONE})), "local") is None


def test_the_terminal_shows_it(tmp_path: Path) -> None:
    console = Console(width=100, record=True, force_terminal=False)
    console.print(board.view(standing.of(made({"local": ALONE, "better": BETTER}))))
    text = console.export_text()
    assert "2 of 2 methods are done" in text
    assert "+12.5" in text
    record.write(tmp_path / "board-made-up.json", made({"local": ALONE, "better": BETTER}))
    told = CliRunner().invoke(app, ["board", "show", str(tmp_path), "--json"])
    rows = json.loads(told.stdout)["made-up"]["rows"]
    assert [row["method"] for row in rows] == ["better", "local"]
    assert math.isclose(rows[0]["against"]["local"]["mean"], 0.125)
    unknown = CliRunner().invoke(app, ["board", "show", str(tmp_path), "--setting", "other"])
    assert isinstance(unknown.exception, UserError)
