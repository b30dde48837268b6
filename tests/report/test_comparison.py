"""The tables of a comparison: one point for all, differences and their noise, clients that are in no figure."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, small_network
from madeup import RMSE, compared, finished, reading, record, result
from rich.console import Console

import fedgraft as fg
from fedgraft.report.comparison import names_for, remarks, view
from fedgraft.report.text import show
from fedgraft.runs import table
from fedgraft.runs.comparison import Reading
from fedgraft.runs.config import At
from fedgraft.runs.metric import ACCURACY
from fedgraft.runs.resultfile import Result
from fedgraft.runs.statistics import paired
from fedgraft.runs.table import Pair, Row, orders

CLIENTS = 12


def text(shown: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(shown)
    return console.export_text()


def rows(results: dict[str, list[Result]], at: At = "trained") -> list[Row]:
    return table.rows(results, ACCURACY, at)


def pairs(results: dict[str, list[Result]], **more: Any) -> list[Pair]:
    return table.pairs(results, ACCURACY, **more)


def level(value: float) -> list[float | None]:
    return [value + 0.001 * client for client in range(CLIENTS)]


ONE_RECEIVED_ONE_TRAINED = {
    "local": [result(level(0.5), level(0.5))],
    "fedper": [result(level(0.8), level(0.6), headline="received")],
    "fedapa": [result(level(0.4), level(0.7))],
}


def test_all_methods_are_compared_at_one_point() -> None:
    table = {row.method: row for row in rows(ONE_RECEIVED_ONE_TRAINED)}
    gains = {name: row.difference.mean for name, row in table.items() if row.difference}
    assert gains == pytest.approx({"fedper": 0.1, "fedapa": 0.2}), "both as trained"
    own = {row.method: row.difference.mean for row in rows(ONE_RECEIVED_ONE_TRAINED, "own") if row.difference}
    assert own == pytest.approx({"fedper": 0.3, "fedapa": 0.2})
    received = {row.method: row.difference.mean for row in rows(ONE_RECEIVED_ONE_TRAINED, "received") if row.difference}
    assert received == pytest.approx({"fedper": 0.3, "fedapa": -0.1})
    assert {row.point for row in rows(ONE_RECEIVED_ONE_TRAINED)} == {"trained"}


def test_another_order_at_another_point_is_said() -> None:
    table = rows(ONE_RECEIVED_ONE_TRAINED)
    assert orders(table) == {
        "trained": ["fedapa", "fedper", "local"],
        "received": ["fedper", "local", "fedapa"],
        "own": ["fedper", "fedapa", "local"],
    }
    assert list(remarks(table, "trained")) == [
        "Another order as received: fedper, local, fedapa.",
        "Another order at each method's own point: fedper, fedapa, local.",
    ]
    same = {name: [result(level(0.1), level(0.1 + 0.1 * n))] for n, name in enumerate(("local", "fedavg"))}
    same["local"] = [result(level(0.0), level(0.1))]
    assert list(remarks(rows(same), "trained")) == []


def test_every_pair_says_where_it_is_compared_and_whether_it_is_noise() -> None:
    noise = [0.55 + (-0.01 if client % 2 else 0.01) for client in range(CLIENTS)]
    several = ONE_RECEIVED_ONE_TRAINED | {"ditto": [result(level(0.5), noise)], "fedavg": [result(noise, noise)]}
    found = {(pair.one, pair.other): pair for pair in pairs(several)}
    assert len(found) == 5 * 4 / 2
    assert {pair.at for pair in found.values()} == {"trained"}
    assert found["fedapa", "local"].difference.more_than_noise
    assert not found["fedavg", "ditto"].difference.more_than_noise
    alone = paired([[0.2] * CLIENTS])
    assert alone is not None
    assert found["fedapa", "local"].difference.p == pytest.approx(alone.p)
    assert found["fedapa", "local"].difference.corrected == pytest.approx(4 * alone.p), "four methods against Local"
    shown = text(view(compared(several)))
    assert "Differences as trained" in shown
    line = next(line for line in shown.splitlines() if "fedapa - local" in line)
    assert line.split()[-1] == "yes"
    line = next(line for line in shown.splitlines() if "fedavg - ditto" in line or "ditto - fedavg" in line)
    assert line.split()[-1] == "no"
    assert max(map(len, shown.splitlines())) <= 80
    assert "Differences as received" in text(view(compared(several), "received"))


def test_many_methods_are_compared_with_local_and_the_best_only() -> None:
    many = {"local": [result(level(0.5), level(0.5))]}
    many |= {f"m{n}": [result(level(0.5), level(0.5 + 0.01 * n))] for n in range(8)}
    assert len(pairs(many)) == 9 * 8 / 2
    few = pairs(many, with_best=True)
    assert len(few) == 8 + 7
    assert {pair.one for pair in few[8:]} == {"m7"}
    tuned = pairs(many | {"fedavg-ft": [result(level(0.5), level(0.52))]}, with_best=True)
    assert len(tuned) == 9 + 8 + 7
    assert {pair.other for pair in tuned[-7:]} == {"fedavg-ft"}, "the simple choice is one to beat"
    leading = pairs(many | {"fedavg-ft": [result(level(0.5), level(0.9))]}, with_best=True)
    assert [(pair.one, pair.other) for pair in leading[9:]] == [("fedavg-ft", f"m{n}") for n in range(8)], "once each"
    assert {pair.difference.family for pair in few[8:]} == {8 * 7 / 2}, "corrected for all pairs, told or not"
    shown = text(view(compared(many)))
    assert "m7 - m3" in shown
    assert "m5 - m3" not in shown


def test_losers_are_shown_beside_winners() -> None:
    harmed = [0.5] * 3 + [0.4] * 9
    shown = text(view(compared({"local": [result(level(0.5), [0.5] * 12)], "ditto": [result(level(0.5), harmed)]})))
    assert "+0 -9" in shown


def test_clients_with_the_same_data_in_all_seeds_count_once() -> None:
    def over_seeds(same: bool) -> dict[str, list[Result]]:
        counts = ([[7]] * 12, [[7 if same else 8]] * 12)
        return {
            name: [result(level(v + 0.1 * s), level(v), seed=s, label_counts=counts[s]) for s in (0, 1)]
            for name, v in (("local", 0.5), ("ditto", 0.6))
        }

    def effective(same: bool) -> int:
        difference = rows(over_seeds(same))[1].difference
        assert difference is not None
        return difference.pairs

    assert effective(same=True) == CLIENTS
    assert effective(same=False) == 2 * CLIENTS
    assert "bootstrap over clients\n" in text(view(compared(over_seeds(same=True))))
    assert "bootstrap over seeds and clients\n" in text(view(compared(over_seeds(same=False))))
    one_digest = over_seeds(same=False)
    for each in chain(*one_digest.values()):
        each.digest = {"data": "abc"}
    assert rows(one_digest)[1].difference.pairs == CLIENTS  # type: ignore[union-attr]


def test_sites_count_once_whatever_a_seed_keeps_of_them() -> None:
    """Seeds put other samples aside, and hold another site out: b is in one of them only."""

    def over_seeds(partition: str) -> dict[str, list[Result]]:
        gains = {"local": ([0.5, 0.5], [0.5, 0.5]), "ditto": ([0.7, 0.6], [0.9, 0.4])}
        return {
            name: [
                result(v, v, seed=s, partition=partition, names=[["a", "b"], ["a", "c"]][s], digest={"data": str(s)})
                for s, v in enumerate(values)
            ]
            for name, values in gains.items()
        }

    sites = over_seeds("own")
    found = table.by_site(sites["ditto"], sites["local"], ACCURACY, "trained")
    assert found == pytest.approx({"a": 0.3, "b": 0.1, "c": -0.1})
    verdict = compared(over_seeds("own")).verdicts()[0]
    assert (verdict.better, verdict.worse, verdict.harmed) == (2, 1, ("c",))
    assert verdict.difference.pairs == 3
    assert rows(over_seeds("blocks:train=4"))[1].difference.pairs == 3  # type: ignore[union-attr]
    drawn = rows(over_seeds("dirichlet:0.1"))[1].difference
    assert drawn is not None
    assert drawn.pairs == 4, "clients of a partition that is drawn anew are others"


def test_a_client_that_never_was_tested_is_not_zero() -> None:
    tested = result([None, 0.5, 0.7], [None, 0.5, 0.7])
    assert table.last_figures(tested, ACCURACY, "trained") == [None, 0.5, 0.7]
    assert table.benefits(tested, result([0.4] * 3, [0.4] * 3), ACCURACY) == [
        None,
        pytest.approx(0.1),
        pytest.approx(0.3),
    ]
    row = rows({"local": [tested]})[0]
    assert row.worst_tenth["trained"].mean == 0.5
    assert row.unevenness["trained"].mean == pytest.approx(0.1)
    assert row.untested == ("client 0",)
    assert "local: not tested, and in no figure: client 0." in list(remarks([row], "trained"))


def test_a_figure_of_an_earlier_round_is_marked() -> None:
    rounds = [record(1, [0.4, 0.5], [0.4, 0.5]), record(2, [None, 0.6], [None, 0.6])]
    two = result([None, 0.6], [None, 0.6], names=["Berlin [east]", "Rome"], rounds=rounds)
    row = rows({"local": [two]})[0]
    assert row.stale == ("Berlin [east] (round 1)",)
    assert table.last_figures(two, ACCURACY, "trained") == [0.4, 0.6]
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    show(reading(finished("local", two)), console)
    lines = console.export_text().splitlines()
    assert any("Berlin [east]" in line and "40.0" in line and "(round 1)" in line for line in lines)
    assert any("Rome" in line and "60.0" in line and "(round" not in line for line in lines)


def test_diverged_clients_are_named_and_counted() -> None:
    broken = {"received": [], "trained": [1, 2]}
    each = [result(level(0.5), level(0.5), seed=s, diverged=broken if s else {}) for s in (0, 1)]
    row = rows({"local": each})[0]
    assert row.diverged == {"received": (), "trained": ("client 1 (seed 1)", "client 2 (seed 1)")}
    shown = " ".join(text(view(compared({"local": each}))).split())
    assert "local: 2 clients diverged, trained: client 1 (seed 1), client 2 (seed 1)." in shown


def test_how_sure_a_clients_own_gain_is() -> None:
    alone = result([0.5] * 12, [8 / 14] * 12, test_samples=[14] * 12)
    helped = result([0.5] * 12, [10 / 14] * 12, test_samples=[14] * 12)
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    one = compared({"local": [alone], "ditto": [helped]})
    show(Reading([one]), console)
    shown = console.export_text()
    assert "+14.3  -19 to  44, 2 of 14" in shown
    gain = one.gains("ditto", 0)
    assert gain is not None
    assert gain[0] is not None
    assert (gain[0].net, gain[0].samples) == (2, 14)
    assert "Yes, most clients." in shown, "every client, each by the same two images"


def test_yes_most_clients_only_if_it_is_more_than_chance() -> None:
    def answer(gains: list[float]) -> str:
        return compared({
            "local": [result([0.5] * len(gains), [0.5] * len(gains))],
            "ditto": [result([0.5] * len(gains), [0.5 + gain for gain in gains])],
        }).verdicts()[0].answer  # fmt: skip

    assert answer([0.1] * 5) == "Too few clients to tell."
    assert answer([0.1] * 7 + [-0.1] * 5) == "Not more than chance."
    assert answer([0.1] * 11 + [-0.01]) == "Yes, most clients."
    assert answer([-0.1] * 11 + [0.01]) == "No, clients lose."
    assert answer([0.3] * 8 + [0.0] * 12) == "Yes, some clients."


def test_long_names_fold_and_numbers_stay_whole() -> None:
    long = [f"fedapa:mu=0.3,server_momentum=0.9,self_weight={v}" for v in (0.25, 0.75)]
    large = {"seconds": 12345.0, "bytes_up_per_client": 5e9}
    results = {
        name: [result(level(0.98), level(0.98 - 0.3 * s), seed=s, **large) for s in (0, 1)]
        for name in ("local", *long)
    }  # fmt: skip
    shown = text(view(compared(results)))
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    folded = "".join(
        "".join(line[:14].split()) for line in shown.partition("─ \n")[2].partition("\n\n")[0].splitlines()
    )
    for name in long:
        assert name in folded.replace(" ", "")
    short, legend = names_for(long, 22)
    assert len(set(short.values())) == 2
    assert all(len(each) == 22 for each in short.values())
    assert [line.partition(" is ")[2] for line in legend] == long


def test_figures_on_everyones_data_and_best_rounds_are_shown(tmp_path: Path) -> None:
    fed = blobs((20, 24, 31, 28))
    settings = {"model": small_network(), "rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8, "global_test": True}
    done = fg.compare(["ditto"], seeds=1, federation=lambda seed: fed, **settings)
    row = {row.method: row for row in done.rows()}["ditto"]
    records = done.runs["ditto"][0].records
    assert row.everyone["trained"].mean == records[-1]["trained_global"]["metrics"]["accuracy"]["mean"]
    best = done.runs["ditto"][0].result["best"]["trained"]["mean"]["round"]
    assert row.everyone_best["trained"].mean == records[best - 1]["trained_global"]["metrics"]["accuracy"]["mean"]
    assert row.best == {}, "without validation data, the best round has seen the test data"
    shown = text(view(done))
    assert "all data" in shown
    assert f"{100 * row.everyone['trained'].mean:.1f}" in shown.partition("Further figures")[2]


def test_apples_metric_is_shown_where_there_is_validation_data() -> None:
    best = {"mean": {"round": 2, "value": 0.777}, "pooled": None}
    rounds = [record(n, level(0.5), [value] * CLIENTS) for n, value in ((1, 0.5), (2, 0.777), (3, 0.5))]
    chosen = result(
        level(0.5), level(0.5), rounds=rounds, best={"chosen_on": "validation", "received": best, "trained": best}
    )
    shown = text(view(compared({"local": [chosen]})))
    assert "77.7" in shown.partition("Further figures")[2]
    assert "chosen on validation data" in shown


@pytest.mark.parametrize("at", ["trained", "received", "own"])
def test_what_is_written_is_json(comparison: fg.Comparison[fg.Run], at: At) -> None:
    written = json.loads(json.dumps(comparison.to_json(at), allow_nan=False))
    assert written["compared_at"] == at
    assert len(written["pairs"]) == 5 * 4 / 2
    first = written["pairs"][0]
    assert first.keys() >= {"one", "other", "at", "difference", "more_than_noise"}
    assert set(first["difference"]["interval"]) == {"low", "high"}


@pytest.mark.slow
def test_text_under_an_ascii_locale(folder: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "fedgraft", "report", str(folder), "--text"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    assert "####" in shown
    assert "?" not in shown.replace("help?", "")
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_that_users_chose_is_markup(tmp_path: Path) -> None:
    evil = "[/bold] [red]x"
    each = {
        name: [result(level(0.5), level(0.5), names=[evil] * 12, diverged={"trained": [0]})] for name in ("local", evil)
    }
    one = compared(each, dataset=evil, model=evil)
    assert evil in " ".join(text(view(one)).split())
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    show(Reading([one], [evil]), console)
    assert f"left out: {evil}" in console.export_text()


def test_another_metric_has_its_own_unit_and_direction() -> None:
    results = {
        "local": [result([54.5] * 12, [54.5] * 12, metrics=[RMSE])],
        "ditto": [result([54.5] * 12, [51.25] * 12, metrics=[RMSE])],
    }
    shown = text(view(compared(results)))
    assert "RMSE after the last round" in shown
    assert "less is better" in shown
    assert "54.50" in shown
    assert "%" not in shown.replace("95 %", "")
    line = next(line for line in shown.splitlines() if "ditto - local" in line)
    assert "+3.250" in line, "less by 3.25 is better by 3.25"
    assert "+12 -0" in shown
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    show(Reading([compared(results)]), console)
    pictures = console.export_text()
    assert "and RMSE on average" in pictures
    assert "mean RMSE of the clients by round" in pictures
    assert max(map(len, pictures.splitlines())) <= 80
