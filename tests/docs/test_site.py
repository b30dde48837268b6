"""The whole site: built strictly, and every page opened in a real browser at two widths."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("mkdocs", reason="the extra fedgraft[docs] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
CHROMIUM = os.environ.get("FEDGRAFT_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def site() -> Path:
    """The tutorials are run by a test of their own, and only shown here."""
    command = [sys.executable, "-m", "website", "build", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as drive:
        opened = drive.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@dataclass
class Tour:
    """What was seen on the way through all pages."""

    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    wide: list[tuple[str, int]] = field(default_factory=list)
    anchors: dict[Path, set[str]] = field(default_factory=dict)
    links: list[tuple[Path, str]] = field(default_factory=list)


@pytest.fixture(scope="module")
def tour(site: Path, browser: Any) -> Tour:
    """Every page, opened once and looked at in both sizes."""
    seen, page = Tour(), browser.new_page()
    page.on("console", lambda said: seen.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its links are those of a server
            continue
        page.set_viewport_size(DESKTOP)  # before the page opens: menus slide while a screen grows
        page.goto(file.as_uri())
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)
            if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
                seen.wide.append((file.name, size["width"]))
        ids = page.evaluate("[...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name)")
        seen.anchors[file] = set(ids)
        seen.links += [(file, link) for link in page.evaluate("[...document.links].map(a => a.href)")]
    page.close()
    return seen


def test_every_page_opens_without_a_complaint_and_no_wider_than_the_screen(tour: Tour) -> None:
    assert len(tour.anchors) > 50
    assert tour.complaints == []
    assert tour.wide == []
    assert {url.partition(":")[0] for url in tour.asked} <= {"file", "data", "blob"}, "nothing comes from elsewhere"


def test_every_link_goes_somewhere(tour: Tour) -> None:
    broken = []
    for file, link in tour.links:
        url, anchor = urldefrag(link)
        if url.startswith("file:"):
            target = Path(unquote(url.removeprefix("file://")))
            held = not anchor or target not in tour.anchors or unquote(anchor) in tour.anchors[target]
            if not (target.exists() and held):
                broken.append((file.name, link))
    assert len(tour.links) > 1000
    assert broken == []


def test_the_search_works_from_disk(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")  # opens it, says Material
    page.wait_for_selector(".md-search__input", state="visible")
    page.keyboard.type("fedapa")
    page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
    assert "fedapa" in " ".join(page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)"))
