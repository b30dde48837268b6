"""The report in a real browser: a distribution's Chromium, headless, opens a file from disk."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import fedgraft as fg

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser is driven by playwright: pip install playwright"
)

CHROMIUM = os.environ.get("FEDGRAFT_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: install Chromium (Debian: apt-get install chromium)"
)

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
        rounds=3, lr=0.1, workers=1,
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


@pytest.fixture(params=SIZES)
def opened(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Opened]:
    width, height = SIZES[request.param]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
    seen = Opened(context.new_page())
    seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("request", lambda asked: seen.requests.append(asked.url))
    seen.page.goto(report.as_uri())
    seen.page.wait_for_selector("figure[data-chart=communication] svg path", state="attached")
    yield seen
    PICTURES.mkdir(parents=True, exist_ok=True)
    theme = seen.page.evaluate("document.documentElement.dataset.theme")
    seen.page.screenshot(path=PICTURES / f"{request.param}-{theme}-{request.node.originalname}.png", full_page=True)
    context.close()
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


def test_seed_and_method_change_the_benefit(opened: Opened, comparison: Any) -> None:
    opened.page.locator("[data-control=benefit]").select_option(label="fedavg")
    opened.page.locator("[data-control=seed]").first.select_option("1")
    bars = [bar["value"] for bar in opened.option("benefit")["series"][0]["data"]]
    fedavg, local = (comparison.runs[name][1].records[-1] for name in ("fedavg", "local"))
    pairs = zip(fedavg["received"]["per_client"], local["trained"]["per_client"], strict=True)
    assert bars == pytest.approx([100 * (ours - alone) for ours, alone in pairs], abs=0.01)
    assert opened.page.locator("[data-control=seed]").last.input_value() == "1", "one seed for all pictures"
    assert "alone" in opened.hover("benefit", column=0, row=0)


def test_figures_per_client_are_lines(opened: Opened) -> None:
    opened.page.locator("[data-control=observed]").select_option(label="apfl: alpha")
    assert opened.page.locator("figure[data-chart=matrix]").is_hidden()
    assert opened.page.locator("[data-for=round]").is_hidden()
    assert len(opened.option("trajectory")["series"]) == 5


def test_dark_follows_the_button_and_paper_is_light(opened: Opened) -> None:
    before = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = opened.option("received")["xAxis"][0]["axisLabel"]["color"]
    opened.page.get_by_role("button", name="Dark").click()
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
    assert charts.count() == 7
    assert all(charts.nth(i).get_attribute("aria-label") for i in range(7))
    controls = "[...document.querySelectorAll('select, input, button')]"
    assert page.evaluate(f"{controls}.filter(each => !each.textContent && !each.closest('label')).length") == 0
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[:3] == [1, 2, 3]
    for chart in ("benefit", "received", "labels", "matrix", "trajectory", "communication"):
        details = page.locator(f"figure[data-chart={chart}] details")
        details.locator("summary").press("Enter")
        details.locator("tbody tr").first.wait_for()
