"""The page without a browser: what it holds, what it must not hold, and how large it gets."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import blobs, small_network
from madeup import AUC, RMSE, finished, reading, record, result
from rich.console import Console

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.report import figures
from fedgraft.report.comparison import view
from fedgraft.report.matrices import LEVELS, MISSING, fair_share, pack
from fedgraft.report.page import render, seconds, size, write
from fedgraft.runs.metric import ACCURACY
from fedgraft.runs.reading import Finished, read_all


def data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found.group(1))


def test_the_page_holds_everything_and_loads_nothing(folder: Path) -> None:
    page = render(read_all([folder]))
    study = data(page)[0]
    assert [method["shown"] for method in study["methods"]] == ["local", "fedavg", "fedapa:mu=0.3", "apfl", "pfedamf*"]
    assert [(seen["name"], seen["matrix"]) for seen in study["observed"]] == [
        ("A", True), ("alpha", False), ("knowledge", True),
    ]  # fmt: skip
    assert len(study["methods"][2]["judged"][0]["curves"]["mean"]["trained"]["values"]) == 3
    assert "default-src &#39;none&#39;" in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"<(link|img|iframe)|src=|url\(|@import", markup)
    assert "Our reading of the method" in markup


def test_a_run_from_python_reports_itself(tmp_path: Path) -> None:
    run = fg.run("fedapa", blobs(), model=small_network(), rounds=2, workers=1)
    page = run.report(tmp_path / "deep" / "report.html").read_text()
    assert "no run of <code>local</code>" in page
    assert data(page)[0]["observed"][0]["shape"] == [4, 1, 4]
    with pytest.raises(UserError, match="cannot be written"):
        run.report(tmp_path)


def test_refused_replies_are_in_the_page_and_in_the_table(tmp_path: Path) -> None:
    fed = blobs()
    comparison = fg.compare(
        ["fedper"], seeds=1, federation=lambda seed: fed, model=small_network(), rounds=2, workers=1,
        stages=["bound:norm=1.0"], out=tmp_path / "all",
    )  # fmt: skip
    written = json.loads((tmp_path / "all" / "fedavg-seed0" / "result.json").read_text())
    named = [refusal for record in written["rounds"] for refusal in record["refused"]]
    assert written["refused"] == len(named) > 0
    assert all("has norm" in refusal["reason"] for refusal in named)
    page = comparison.report(tmp_path / "report.html").read_text()
    told = f"fedavg {len(named)}, of client 0, client 1, client 2, client 3; {named[0]['reason']}"
    assert told in page.replace("&#39;", "'")
    assert "local" not in page.partition("Replies that the server refused")[2].partition("</p>")[0]
    console = Console(width=80, file=io.StringIO())
    console.print(view(comparison))
    assert f"Replies refused: {len(named)} of fedavg" in console.file.getvalue()  # type: ignore[attr-defined]


def made(label: str, seed: int, *, clients: int, rounds: int, observed: dict[str, Any], **settings: Any) -> Finished:
    rng = np.random.default_rng(seed)
    records = [record(number, *[rng.random(clients).tolist()] * 2) for number in range(1, rounds + 1)]
    facts = result([0.5] * clients, [0.5] * clients, seed=seed, rounds=records, label_counts=[[5] * 10] * clients)
    return finished(label, facts, observed, **settings)


def test_names_that_users_chose_are_only_text() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    run = made(evil, 0, clients=2, rounds=1, observed={evil: np.eye(2)[None]}, dataset=evil, model=evil)
    page = render(reading(run, notes=[evil]))
    assert "<img src=x" not in page
    assert data(page)[0]["methods"][0]["label"] == evil
    assert page.count("</script>") == 6, "the theme, the data and four scripts"


def test_twenty_clients_and_fifty_rounds_stay_below_five_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    observed = {"A": rng.random((50, 20, 20)), "by layer": rng.random((50, 20, 9, 20))}
    runs = [
        made(label, seed, clients=20, rounds=50, observed=observed)
        for label in ("local", "fedavg", *(f"m{i}" for i in range(8)))
        for seed in range(3)
    ]  # fmt: skip
    path = write(reading(*runs), tmp_path / "report.html")
    assert path.stat().st_size < 5_000_000


def test_packing_keeps_values_and_the_first_and_the_last_round() -> None:
    array = np.linspace(-1, 3, 40).reshape(10, 2, 1, 2)
    array[0, 0, 0, 0] = np.nan
    packed = pack(array, budget=10_000)
    assert packed is not None
    levels = np.frombuffer(base64.b64decode(packed["data"]), dtype="<u2")
    assert levels[0] == MISSING
    values = packed["low"] + levels[1:] / LEVELS * (packed["high"] - packed["low"])
    np.testing.assert_allclose(values, array.ravel()[1:], atol=1e-4)
    fewer = pack(array, budget=40)  # 4 values of 8/3 characters: 3 rounds
    assert fewer is not None
    assert fewer["rounds"] == [1, 6, 10] or fewer["rounds"] == [1, 5, 10]
    assert pack(array, budget=20) is None


def test_small_arrays_leave_room_to_large_ones() -> None:
    small, large = np.zeros((1, 3)), np.zeros((100, 3))  # 8 and 800 characters, rounded up: 9 and 801
    assert fair_share([large, small], 409) == 400
    assert fair_share([large, large, small], 409) == 200
    assert fair_share([small, large], 10_000) == 801
    assert fair_share([], 10) == 10


def test_numbers_for_people() -> None:
    assert [ACCURACY.difference(v) for v in (0.0312, -0.0312, 0.0, -0.0001)] == ["+3.1", "−3.1", "0.0", "0.0"]
    assert [ACCURACY.shown(*each) for each in ((0.5,), (0.12345, 0.01), (None,), (float("nan"),))] == [
        "50.0", "12.3±1.0", "–", "–",
    ]  # fmt: skip
    assert [RMSE.shown(v) for v in (0.1234, 12.345, 345.67, 12345.6, 1e7, 2e-5, 0.0)] == [
        "0.123", "12.35", "345.7", "12346", "1.0e+07", "2.0e-05", "0.000",
    ]  # fmt: skip
    assert [RMSE.difference(v) for v in (1.5, -0.25, 0.0)] == ["+1.500", "−0.250", "0.000"]
    assert RMSE.shown(54.5, 0.2345) == "54.5±0.2", "a figure beside its deviation"
    assert [size(value) for value in (12, 2048, 3.5 * 2**20)] == ["12 B", "2.0 KiB", "3.5 MiB"]
    assert [seconds(value) for value in (1.23, 45, 600, 9000)] == ["1.2 s", "45 s", "10 min", "2 h 30 min"]


def outcome(label: str, values: list[Any], *, never: int | None = None, **facts: Any) -> Finished:
    """A run of two rounds in whose last one these were the clients' accuracies; before, everybody had a half."""
    count = len(values)
    before: list[float | None] = [None if never == client else 0.5 for client in range(count)]
    rounds = [record(number, before, now, loss=0.7) for number, now in ((1, before), (2, values))]
    told = {"label_counts": [[5] * 3] * count, "test_samples": [14] * count}
    return finished(label, result(before, values, rounds=rounds, **(told | facts)))


def clients(page: str, place: int = 0, point: str = "trained") -> Any:
    return data(page)[0]["methods"][place]["judged"][0]["clients"][point][0]


def test_without_local_every_client_still_has_its_figure() -> None:
    page = render(reading(outcome("fedper", [11 / 14, 0.5, 1.0, 13 / 14])))
    assert "no run of <code>local</code>" in page
    told = clients(page)
    assert told["value"] == pytest.approx([78.571429, 50, 100, 92.857143])
    low, high = told["interval"][0]  # Wilson, 11 of 14: centre (11 + 1.92) / (14 + 3.84), by hand
    assert (low + high) / 2 == pytest.approx(100 * (11 + 1.9207) / (14 + 3.8415), abs=0.01)
    assert data(page)[0]["tested"] == [[14] * 4]
    assert '<figure data-chart="benefit">' in page
    assert '<figure data-chart="paths">' in page


def test_a_gain_is_told_in_test_samples() -> None:
    page = render(reading(outcome("local", [0.5] * 4), outcome("fedper", [9 / 14, 0.5, 6 / 14, 0.5])))
    gains = data(page)[0]["methods"][1]["judged"][0]["benefit"]["trained"][0]
    assert gains["net"] == [2, 0, -1, 0]
    assert gains["gain"] == pytest.approx([14.285714, 0, -7.142857, 0])
    low, high = gains["interval"][0]
    assert low < 0 < gains["gain"][0] < high, "two of fourteen samples may be chance"
    assert "Yes, most clients" not in page
    assert "Too few clients to tell." in page


def test_most_clients_are_said_to_gain_only_beyond_chance() -> None:
    local = outcome("local", [0.5] * 20)
    sure = render(reading(local, outcome("fedper", [0.7 + 0.01 * client for client in range(20)])))
    assert "Yes, most clients." in sure
    assert "1 of 1 methods" not in sure
    noise = render(reading(local, outcome("fedper", [0.5 + 0.1 * (-1) ** client for client in range(20)])))
    assert "Yes" not in noise.partition('class="lead"')[2].partition("</p>")[0]
    assert "Not more than chance." in noise


def test_who_diverged_and_who_was_not_tested_is_named() -> None:
    names = ["Ålesund", "<b>Bergen</b>", "Cork", "Delft"]
    runs = [
        outcome("local", [0.5, 0.5, 0.5, 0.5], names=names),
        outcome(
            "fedper", [0.1, None, None, 0.9], names=names, never=1, diverged={"received": [], "trained": [0]}
        ),
    ]  # fmt: skip
    page = render(reading(*runs))
    assert "Diverged clients, whose outputs are not finite and count as wrong: fedper: 1, Ålesund." in page
    assert "Never tested, and in no figure: fedper: 1, &lt;b&gt;Bergen&lt;/b&gt;." in page
    assert "Last tested before the last round: fedper: 1, Cork (round 1)." in page
    told = clients(page, 1)
    assert told["value"] == [10, None, 50, 90]
    assert told["round"] == [None, None, 1, None]
    assert told["diverged"] == [0]
    assert data(page)[0]["names"] == names
    assert "<b>Bergen</b>" not in page
    assert data(page)[0]["methods"][1]["judged"][0]["benefit"]["trained"][0]["gain"][1] is None


def test_the_page_says_at_which_point_it_compares_and_when_that_matters() -> None:
    runs = [outcome("local", [0.5] * 4), outcome("fedper", [0.9] * 4, headline="received"), outcome("ditto", [0.8] * 4)]
    for run, received in zip(runs, (0.5, 0.6, 0.7), strict=True):
        for found in (run.facts.rounds[-1].received.metrics["accuracy"], run.facts.last.received["accuracy"]):
            found.mean = received
        run.facts.rounds[-1].received.metrics["accuracy"].per_client = [received] * 4
    page = render(reading(*runs))
    assert "The order of the methods depends on it" in page
    assert "as trained: fedper, ditto, local; as received: ditto, fedper, local" in page
    study = data(page)[0]
    assert study["point"] == "trained"
    assert study["best"] == {"trained": ["fedper"], "received": ["ditto"], "own": ["ditto"]}
    assert data(render(reading(*runs), "own"))[0]["point"] == "own"
    assert "is the same at all of them" in render(reading(runs[0], runs[2]))


def test_a_run_that_was_never_tested_has_a_page() -> None:
    nothing = {"accuracy": {"mean": None, "pooled": None}}
    rounds = [{"round": 1, "bytes_up": 9, "bytes_down": 9}]
    facts = result([0.5] * 4, [0.5] * 4, rounds=rounds, last={"received": nothing, "trained": nothing})
    page = render(reading(finished("fedper", facts)))
    assert clients(page)["value"] == [None] * 4
    assert data(page)[0]["methods"][0]["judged"][0]["paths"]["trained"] == [None]


@pytest.mark.slow
def test_the_figures_for_a_paper_have_losses_clients_and_everybodys_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fg.compare(
        ["fedapa"], seeds=1, federation=lambda seed: blobs(seed=seed), model=small_network(), rounds=2, workers=1,
        global_test=True, out=tmp_path / "all",
    )  # fmt: skip
    written = {path.stem for path in figures.write(read_all([tmp_path / "all"]), tmp_path / "figures")}
    for point in ("received", "trained"):
        assert {
            f"convergence-{point}",
            f"convergence-log_loss-pooled-{point}",
            f"convergence-everyone-{point}",
        } <= written
    assert {"training-loss", "benefit-fedapa-seed0", "accuracy-local-seed0", "clients-fedapa-seed0"} <= written
    assert {"matrix-fedapa-A-seed0", "trajectories-fedapa-A-seed0", "labels-seed0", "communication"} <= written


def test_colours_reach_from_the_smallest_to_the_largest_value() -> None:
    mixed = np.array([[[0.9, 0.04], [0.06, 0.9]]])
    scale, extend = figures._scale(mixed, mixing=True)
    assert (scale["vmin"], scale["vmax"], extend) == (0.04, 0.06, "max"), "what clients give themselves outshines it"
    scale, extend = figures._scale(mixed, mixing=False)
    assert (scale["vmin"], scale["vmax"], extend) == (0.04, 0.9, "neither")
    assert figures._scale(mixed - 0.5, mixing=False)[0]["vmin"] == pytest.approx(-0.46)


def test_a_page_can_be_judged_by_every_metric_in_its_direction() -> None:
    def judged(auc: float, rmse: float) -> Any:
        values = {"auc": [auc] * 4, "rmse": [rmse] * 4}
        return result(values, values, metrics=[AUC, RMSE])

    runs = [finished("local", judged(0.5, 3.0)), finished("ditto", judged(0.25, 2.0))]
    page = render(reading(*runs))
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "accuracy" not in markup
    study = data(page)[0]
    assert (study["metric"], [metric["title"] for metric in study["metrics"]]) == (0, ["AUC", "RMSE"])
    assert [metric["higher"] for metric in study["metrics"]] == [True, False]
    by_auc, by_rmse = study["methods"][1]["judged"]
    assert by_auc["benefit"]["trained"][0]["gain"] == [-25] * 4
    assert by_rmse["benefit"]["trained"][0]["gain"] == [1] * 4, "less is a gain"
    assert by_rmse["benefit"]["trained"][0]["net"] == [None] * 4, "RMSE counts no samples"
    assert "−25.0 points of AUC" in page
    assert "+1.000 RMSE" in page
    assert "+ is better, as less RMSE is" in page
    assert '.study[data-metric="1"] [data-m]:not([data-m="1"])' in page
    assert data(render(reading(*runs), metric="rmse"))[0]["metric"] == 1
    with pytest.raises(UserError, match="no metric is called 'r2'"):
        render(reading(*runs), metric="r2")
