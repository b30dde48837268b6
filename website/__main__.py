"""Make the site: `make docs` builds it into build/site, `make docs-serve` shows it while pages are written."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from website import methods, pages, reference, tutorials

PAGES = pages.ROOT / "build" / "pages"
SITE = pages.ROOT / "build" / "site"
VENDOR = Path(__file__).parent / "vendor"
MKDOCS = Path(__file__).parent / "mkdocs.yml"


def assemble(out: Path = PAGES, run: bool = True) -> None:
    """Put every page together: those of docs/, those from the code, and the tutorials, which are run for it."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pages.copy(out)
    shutil.copytree(VENDOR, out / "vendor")
    for place, text in (methods.pages() | reference.pages()).items():
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    tutorials.write(out / "tutorials", run)


def main() -> None:
    """Build or serve."""
    words = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    words.add_argument("what", choices=("build", "serve"))
    words.add_argument("--quick", action="store_true", help="show the tutorials without running them")
    given = words.parse_args()
    assemble(run=not given.quick)
    options = ["--strict", "--site-dir", str(SITE)] if given.what == "build" else []
    command = [sys.executable, "-m", "mkdocs", "-q", given.what, "--config-file", str(MKDOCS), *options]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    sys.exit(subprocess.run(command, cwd=pages.ROOT, env=quiet, check=False).returncode)


if __name__ == "__main__":
    main()
