"""The report in a real browser: a distribution's Chromium, headless, opens a file from disk."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import blobs, small_network

import fedgraft as fg
from fedgraft.board import standing
from fedgraft.board.record import Clients, Entry, Outcome, Record
from fedgraft.report import board
from fedgraft.runs.metric import ACCURACY

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser is driven by playwright: pip install playwright"
)

CHROMIUM = os.environ.get("FEDGRAFT_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Chromium (Debian: apt-get install chromium)"),
]

PICTURES = Path(__file__).parents[2] / "build" / "report"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@dataclass
class Opened:
    """A page, and what it said and asked for since it was opened."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def option(self, chart: str) -> Any:
        return self.page.evaluate(f"echarts.getInstanceByDom({_place(chart)}).getOption()")

    def names(self, chart: str) -> list[str]:
        return [s["name"] for s in self.option(chart)["series"] if s.get("id", "").startswith("method")]

    def bars(self, chart: str) -> list[float]:
        return [bar["value"] for bar in self.option(chart)["series"][0]["data"]]

    def column(self, number: int) -> list[str]:
        """What is seen in a column of the table of methods."""
        return [
            str(cell) for cell in self.page.locator(f"table.methods tbody tr > :nth-child({number})").all_inner_texts()
        ]

    def hover(self, chart: str, column: int, row: int) -> str:
        """Move the mouse to a cell and read the tooltip."""
        place = self.page.locator(f"figure[data-chart={chart}] .chart")
        place.scroll_into_view_if_needed()
        x, y = self.page.evaluate(
            f"echarts.getInstanceByDom({_place(chart)}).convertToPixel({{seriesIndex: 0}}, [{column}, {row}])"
        )
        box = place.bounding_box()
        self.page.mouse.move(box["x"] + x - 3, box["y"] + y)
        self.page.mouse.move(box["x"] + x, box["y"] + y)
        tooltip = place.locator("> div").last
        tooltip.wait_for(state="visible")
        return str(tooltip.inner_text())


def _place(chart: str) -> str:
    return f"document.querySelector('figure[data-chart={chart}] .chart')"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fg.compare(
        ["fedapa", "apfl", "fedper", "pfedamf"], seeds=2, dataset="digits", clients=5, partition="dirichlet:0.3",
        model="mlp:32", rounds=3, epochs=1, lr=0.1, validation=0.2, global_test=True, workers=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(comparison: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(comparison.report(tmp_path_factory.mktemp("page") / "report.html"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def windows(browser: Any) -> Iterator[dict[str, Opened]]:
    """A window of each size, in which tests open the report anew: a new window takes longer than a test."""
    made = {}
    for name, (width, height) in SIZES.items():
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
        made[name] = seen = Opened(context.new_page())
        seen.page.on("console", lambda message, to=seen: to.complaints.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error, to=seen: to.complaints.append(str(error)))
        seen.page.on("request", lambda asked, to=seen: to.requests.append(asked.url))
    yield made
    for seen in made.values():
        seen.page.context.close()


@pytest.fixture(params=SIZES)
def opened(request: pytest.FixtureRequest, windows: dict[str, Opened], report: Path) -> Iterator[Opened]:
    seen = windows[request.param]
    seen.complaints.clear()
    seen.requests.clear()
    seen.page.mouse.move(0, 0)
    seen.page.emulate_media(media="screen", color_scheme="light")
    seen.page.goto(report.as_uri())
    seen.page.wait_for_selector("figure[data-chart=communication] svg path", state="attached")
    yield seen
    PICTURES.mkdir(parents=True, exist_ok=True)
    theme = seen.page.evaluate("document.documentElement.dataset.theme")
    seen.page.screenshot(path=PICTURES / f"{request.param}-{theme}-{request.node.originalname}.png", full_page=True)
    assert seen.complaints == []
    assert seen.requests == [report.as_uri()], "the report asks nobody for anything"


def test_the_slider_moves_the_matrix_and_hovering_tells_its_values(opened: Opened, comparison: Any) -> None:
    weights = comparison.runs["fedapa"][0].observed["A"]
    assert "fedapa: A" in opened.page.locator("[data-control=observed]").inner_text()
    slider = opened.page.locator("[data-control=round]")
    assert slider.get_attribute("aria-valuetext") == "round 3"
    tooltip = opened.hover("matrix", column=2, row=1)
    assert "Client 1 from client 2" in tooltip
    assert float(tooltip.split(": ")[1].split()[0]) == pytest.approx(float(weights[2, 1, 2]), rel=0.01, abs=1e-4)
    slider.focus()
    opened.page.keyboard.press("Home")
    assert opened.page.locator(".slider output").inner_text() == "1"
    tooltip = opened.hover("matrix", column=2, row=1)
    assert "round 1" in tooltip
    assert float(tooltip.split(": ")[1].split()[0]) == pytest.approx(float(weights[0, 1, 2]), rel=0.01, abs=1e-4)
    opened.page.locator("[data-control=client]").select_option("3")
    assert "client 3 takes most from itself" in opened.page.locator("[data-role=sources]").inner_text()


def test_one_click_shows_and_hides_a_method(opened: Opened) -> None:
    button = opened.page.get_by_role("button", name="fedapa")
    assert opened.names("received") == ["local", "fedavg", "fedapa", "apfl", "fedper", "pfedamf*"]
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("received", "trained"):
        assert "fedapa" not in opened.names(chart)
    assert "fedapa" not in opened.names("communication")
    button.press("Space")
    assert "fedapa" in opened.names("trained")


def accuracies(comparison: Any, label: str, seed: int, point: str) -> list[float]:
    return [
        100 * accuracy
        for accuracy in comparison.runs[label][seed].records[-1][point]["metrics"]["accuracy"]["per_client"]
    ]


def test_seed_method_and_point_change_the_benefit(opened: Opened, comparison: Any) -> None:
    opened.page.locator("[data-control=benefit]").select_option(label="fedavg")
    opened.page.locator("[data-control=seed]").first.select_option("1")
    for point in ("trained", "received"):
        opened.page.locator(f"[data-control=point][value={point}]").check()
        ours, alone = (accuracies(comparison, label, 1, point) for label in ("fedavg", "local"))
        gains = [mine - other for mine, other in zip(ours, alone, strict=True)]
        assert opened.bars("benefit") == pytest.approx(gains, abs=0.01)
    opened.page.locator("[data-control=view]").select_option("value")
    assert opened.bars("benefit") == pytest.approx(ours, abs=0.01)
    opened.page.locator("[data-control=view]").select_option("gain")
    assert opened.page.locator("[data-control=seed]").last.input_value() == "1", "one seed for all pictures"
    assert "alone" in opened.hover("benefit", column=0, row=0)


def test_the_reader_chooses_where_methods_are_compared(opened: Opened, comparison: Any) -> None:
    page = opened.page
    for point in ("trained", "received"):
        page.locator(f"[data-control=point][value={point}]").check()
        means = {row.method: 100 * row.mean[point].mean for row in comparison.rows(point)}
        order = sorted(means, key=lambda label: -means[label])
        assert [name.rstrip("*") for name in opened.column(1)] == order, "sorted by what is compared"
        assert opened.column(2)[0].split()[0] == f"{means[order[0]]:.1f}"
        verdict = page.locator(".verdict:visible")
        assert verdict.count() == 1
        assert f"({point})" in verdict.locator(".lead").inner_text()
        table = opened.option("communication")["series"]
        ends = {each["name"]: each["data"][-1][1] for each in table if each.get("id", "").startswith("method")}
        assert ends["fedapa"] == pytest.approx(means["fedapa"], abs=0.01)
    page.locator("[data-control=point][value=own]").check()
    assert "received" in page.locator(".verdict:visible tbody").inner_text()
    assert "trained" in page.locator(".verdict:visible tbody").inner_text()
    assert "order of the methods" in page.locator(".switch").inner_text()


def test_the_table_sorts_and_marks_the_best(opened: Opened, comparison: Any) -> None:
    head = opened.page.locator("table.methods thead tr:last-child th", has_text="spread of clients")
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending", "little spread is better"
    spreads = {row.method: row.unevenness["trained"].mean for row in comparison.rows("trained")}
    best = min(spreads, key=lambda label: spreads[label])
    assert opened.column(1)[0].rstrip("*") == best
    number = 1 + opened.page.evaluate("document.querySelector('table.methods [aria-sort]').cellIndex")
    marked = opened.page.locator(f"table.methods tbody tr:has(td:nth-child({number}).best) th").all_inner_texts()
    assert [name.rstrip("*") for name in marked] == [best]
    head.get_by_role("button").click()
    assert opened.column(1)[-1].rstrip("*") == best


def test_losses_validation_and_everybodys_data_are_drawn(opened: Opened, comparison: Any) -> None:
    select = opened.page.locator("[data-control=figure]")
    last = comparison.runs["fedper"][0].records[-1], comparison.runs["fedper"][1].records[-1]

    def end(chart: str) -> float:
        return float(next(s for s in opened.option(chart)["series"] if s["name"] == "fedper")["data"][-1][1])

    for key, part, figure, scale in (
        ("pooled", "received", "pooled", 100), ("everyone", "received_global", "mean", 100),
        ("validation", "received_validation", "mean", 100),
    ):  # fmt: skip
        select.select_option(key)
        there = [record[part]["metrics"]["accuracy"][figure] for record in last]
        assert end("received") == pytest.approx(scale * sum(there) / 2, abs=1e-3)
    select.select_option("training")
    assert end("received") == pytest.approx(sum(record["loss"] for record in last) / 2, abs=1e-3)
    assert opened.page.locator("figure[data-chart=trained]").is_hidden(), "training has no two points"
    select.select_option("mean")
    assert opened.page.locator("figure[data-chart=trained]").is_visible()
    heads = opened.page.locator("table.methods thead").inner_text()
    assert "round chosen on validation data" in heads
    assert "Everybody’s test data" in heads


def test_the_reader_chooses_what_methods_are_judged_by(opened: Opened, comparison: Any) -> None:
    page = opened.page
    page.locator("[data-control=metric]").select_option(label="log loss (less is better)")
    rows = comparison.rows("trained", "log_loss")
    means = {row.method: row.mean["trained"].mean for row in rows}
    order = sorted(means, key=lambda label: means[label])
    assert [name.rstrip("*") for name in opened.column(1)] == order, "the least loss comes first"
    head = page.locator("table.methods [aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    first = next(row for row in rows if row.method == order[0])
    assert opened.column(2)[0] == first.metric.shown(*first.mean["trained"]).replace("±", " ± ")
    assert page.locator("table.methods tbody tr:has(td:nth-child(2).best) th").inner_text().rstrip("*") == order[0]
    lead = page.locator(".verdict:visible .lead").inner_text()
    assert "log loss on average against training alone" in " ".join(lead.split())
    page.locator("[data-control=benefit]").select_option(label="fedper")
    ours, alone = (
        comparison.runs[label][0].records[-1]["trained"]["metrics"]["log_loss"]["per_client"]
        for label in ("fedper", "local")
    )
    gains = [theirs - mine for mine, theirs in zip(ours, alone, strict=True)]
    assert opened.bars("benefit") == pytest.approx(gains, abs=1e-4), "less loss is a gain"
    assert opened.option("benefit")["yAxis"][0]["name"] == "Gain over Local (log loss)"
    assert opened.option("received")["yAxis"][0]["name"] == "Test log loss"
    assert opened.option("communication")["yAxis"][0]["name"] == "Test log loss"
    assert "log loss" in page.locator("h3", has_text="Communication against").inner_text()
    page.locator("[data-control=metric]").select_option(label="accuracy")
    assert opened.option("received")["yAxis"][0]["name"] == "Test accuracy (%)"
    assert page.locator("table.methods [aria-sort]").get_attribute("aria-sort") == "descending"


def test_every_client_has_a_curve(opened: Opened, comparison: Any) -> None:
    opened.page.locator("[data-control=benefit]").select_option(label="fedper")
    lines = {each["name"]: each["data"] for each in opened.option("paths")["series"]}
    drawn = [lines[f"client {client}"][-1][1] for client in range(5)]
    assert drawn == pytest.approx(accuracies(comparison, "fedper", 0, "trained"), abs=0.01)
    opened.page.locator("[data-control=person]").select_option(label="client 2")
    assert "client 2 stands out" in opened.page.locator("figure[data-chart=paths] figcaption").inner_text()


def test_what_is_shown_is_explained_and_scaled_to_its_values(opened: Opened, comparison: Any) -> None:
    assert "share of another client's model" in opened.page.locator("[data-role=meaning]").inner_text()
    weights = comparison.runs["fedapa"][0].observed["A"].numpy()
    others = weights[:, ~np.eye(5, dtype=bool)]
    scale = opened.option("matrix")["visualMap"][0]
    assert (scale["min"], scale["max"]) == pytest.approx((others[-1].min(), others[-1].max()), abs=1e-4)
    opened.page.locator("[data-control=roundScale]").uncheck()
    scale = opened.option("matrix")["visualMap"][0]
    assert (scale["min"], scale["max"]) == pytest.approx((others.min(), others.max()), abs=1e-4)
    opened.page.locator("[data-control=observed]").select_option(label="apfl: alpha")
    assert "share of the private model" in opened.page.locator("[data-role=meaning]").inner_text()


def test_legends_stand_below_their_charts(opened: Opened) -> None:
    for chart in ("received", "trained", "communication"):
        legend = opened.page.locator(f"figure[data-chart={chart}] .legend")
        assert legend.inner_text().split() == ["local", "fedavg", "fedapa", "apfl", "fedper", "pfedamf*"]
        assert legend.locator("svg").count() == 6


def test_figures_per_client_are_lines(opened: Opened) -> None:
    opened.page.locator("[data-control=observed]").select_option(label="apfl: alpha")
    assert opened.page.locator("figure[data-chart=matrix]").is_hidden()
    assert opened.page.locator("[data-for=round]").is_hidden()
    assert len(opened.option("trajectory")["series"]) == 5


def test_dark_follows_the_button_and_paper_is_light(opened: Opened) -> None:
    before = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = opened.option("received")["xAxis"][0]["axisLabel"]["color"]
    opened.page.get_by_role("button", name="Dark colours").click()
    assert opened.page.locator("#theme").inner_text() == "Light colours", "the button says what it does"
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert opened.option("received")["xAxis"][0]["axisLabel"]["color"] != line
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.option("received")["xAxis"][0]["axisLabel"]["color"] == line
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_has_a_name_and_a_table_and_fits_the_screen(opened: Opened) -> None:
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    charts = page.locator(".chart:visible")
    assert charts.count() == 8
    assert all(charts.nth(i).get_attribute("aria-label") for i in range(8))
    controls = "[...document.querySelectorAll('select, input, button')]"
    assert page.evaluate(f"{controls}.filter(each => !each.textContent && !each.closest('label')).length") == 0
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[:3] == [1, 2, 3]
    for chart in ("benefit", "paths", "received", "labels", "matrix", "trajectory", "communication"):
        details = page.locator(f"figure[data-chart={chart}] details")
        details.locator("summary").press("Enter")
        details.locator("tbody tr").first.wait_for()


def test_without_local_named_clients_and_one_that_was_never_tested(browser: Any, tmp_path: Path) -> None:
    run = fg.run("fedapa", blobs(), model=small_network(), rounds=2, workers=1)
    run.result["names"] = ["Ålesund", "<b>Bergen</b>", "Cork", "Delft"]
    run.result["test_samples"] = [14, 14, 14, 14]
    for record in run.result["rounds"]:
        for point in ("received", "trained"):
            for figures in record[point]["metrics"].values():
                figures["per_client"][1] = None
    context = browser.new_context(viewport={"width": 390, "height": 844})
    seen = Opened(context.new_page())
    seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.goto(run.report(tmp_path / "report.html").as_uri())
    seen.page.wait_for_selector("figure[data-chart=communication] svg path", state="attached")
    caption = seen.page.locator("figure[data-chart=benefit] figcaption").inner_text()
    assert "Test accuracy of each client" in caption
    assert "Not tested: <b>Bergen</b>." in caption
    last = run.result["rounds"][-1]["trained"]["metrics"]["accuracy"]["per_client"]
    shown = seen.bars("benefit")
    assert shown[1] == "-", "no bar, and not 0"
    assert [shown[i] for i in (0, 2, 3)] == pytest.approx([100 * last[i] for i in (0, 2, 3)], abs=1e-4)
    whiskers = seen.option("benefit")["series"][1]["data"]
    assert whiskers[0][1] < shown[0] <= whiskers[0][2] + 1e-6
    tooltip = seen.hover("benefit", column=0, row=30)
    assert f"{round(14 * last[0])} of 14 test samples" in tooltip
    assert "Ålesund from Cork" in seen.hover("matrix", column=2, row=0)
    seen.page.locator("figure[data-chart=benefit] details summary").press("Enter")
    assert "not tested" in seen.page.locator("figure[data-chart=benefit] details tbody").inner_text()
    context.close()
    assert seen.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_board_sorts_and_finds_methods(browser: Any, tmp_path: Path, width: int) -> None:
    outcomes = {"local": [0.5, 0.6], "fedavg-ft": [0.7, 0.8], "fedapa": [0.9, 0.2]}
    entries = [
        Entry(method=method, state="done", outcomes=[Outcome(seed=seed, figures=figures) for seed in (0, 1)])
        for method, figures in outcomes.items()
    ]
    told = Record(
        setting="made-up", title="Made up", natural=False, size="tiny", metric=ACCURACY,
        terms={"draws": 2, "trials": 8, "hold_out": 0.2},
        draws=[Clients(seed=seed, names=["a", "b"], unseen=[]) for seed in (0, 1)], entries=entries,
    )  # fmt: skip
    path = board.write({"made-up": standing.of(told)}, tmp_path / "board.html")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
    page, complaints, requests = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: requests.append(asked.url))
    page.goto(path.as_uri())
    rows = page.locator("table.sortable tbody tr")
    assert [name.strip() for name in page.locator("table.sortable tbody th").all_inner_texts()] == [
        "fedavg-ft", "local", "fedapa",
    ]  # fmt: skip
    page.get_by_role("button", name="Harmed").click()
    assert rows.first.get_attribute("data-method") == "fedavg-ft", "nobody is harmed there"
    assert rows.last.get_attribute("data-method") == "local", "it has no such figure"
    page.get_by_role("button", name="Harmed").click()
    assert rows.first.get_attribute("data-method") == "fedapa"
    page.get_by_label("Show methods").fill("apa")
    assert [row.get_attribute("data-method") for row in rows.all() if row.is_visible()] == ["fedapa"]
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only tables are wider than a phone"
    context.close()
    assert (complaints, requests) == ([], [path.as_uri()])
