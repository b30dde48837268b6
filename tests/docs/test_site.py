"""The whole site: built strictly, and every page opened in a real browser at two widths."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
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


@pytest.mark.parametrize("size", SIZES)
def test_every_page_opens_without_a_complaint_and_no_wider_than_the_screen(site: Path, browser: Any, size: str) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height})
    page, complaints, asked = context.new_page(), list[str](), list[str]()
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    wide = []
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its links are those of a server
            continue
        page.goto(file.as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(file.name)
    assert complaints == []
    assert wide == []
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}, "nothing comes from elsewhere"
    context.close()


def test_every_link_goes_somewhere(site: Path, browser: Any) -> None:
    page = browser.new_page()
    anchors, links = dict[Path, set[str]](), list[tuple[Path, str]]()
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        anchors[file] = set(page.evaluate("[...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name)"))
        links += [(file, link) for link in page.evaluate("[...document.links].map(a => a.href)")]
    broken = []
    for file, link in links:
        url, anchor = urldefrag(link)
        if url.startswith("file:"):
            target = Path(unquote(url.removeprefix("file://")))
            held = not anchor or target not in anchors or unquote(anchor) in anchors[target]
            if file.name != "404.html" and not (target.exists() and held):
                broken.append((file.name, link))
    assert len(links) > 1000
    assert broken == []


def test_the_search_works_from_disk(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")  # opens it, says Material
    page.wait_for_selector(".md-search__input", state="visible")
    page.keyboard.type("fedapa")
    page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
    assert "fedapa" in " ".join(page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)"))
