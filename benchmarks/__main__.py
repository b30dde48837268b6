"""Measure speed and memory, and write the figures and the page that shows them.

    python -m benchmarks                    # engine, clients, steps, server, growth, crowds, agenda
    python -m benchmarks peers              # the same work by other libraries, each in an environment of its own
    python -m benchmarks million            # a million clients, in one process and on two ranks; takes a while
    python -m benchmarks ranks              # FedAPA's server with a thousand clients, on 1, 2 and 4 ranks
    python -m benchmarks deployment         # a round on Flower against one of the local engine; takes a while
    python -m benchmarks engine --tiny --figures DIR/figures.json --page DIR/page.md
    python -m benchmarks page               # the page again, from the figures

A part that is measured replaces its figures; the others stay.
"""

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

DOCS = Path(__file__).parents[1] / "docs"
PARTS = {
    "engine": "benchmarks.engine",
    "clients": "benchmarks.clients",
    "steps": "benchmarks.steps",
    "server": "benchmarks.server",
    "growth": "benchmarks.growth",
    "crowds": "benchmarks.crowds",
    "agenda": "benchmarks.agenda",
    "million": "benchmarks.million",
    "ranks": "benchmarks.ranks",
    "peers": "benchmarks.peers.race",
    "deployment": "benchmarks.deployment",
}
ALONE = [part for part in PARTS if part not in ("million", "ranks", "peers", "deployment")]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*PARTS, "page"]
    parser.add_argument("parts", nargs="*", default=ALONE, metavar="PART", help=", ".join(known))
    parser.add_argument("--tiny", action="store_true", help="as little work as possible: does it run at all?")
    parser.add_argument("--figures", type=Path, default=DOCS / "benchmarks.json", help="the figures, as JSON")
    parser.add_argument("--page", type=Path, default=DOCS / "benchmarks.md", help="the page made of them")
    parser.add_argument("--environments", type=Path, default=Path(".bench"), help="where the peers are installed")
    options = parser.parse_args()
    if wrong := [part for part in options.parts if part not in known]:
        parser.error(f"there is no part {wrong[0]!r}; there are {', '.join(known)}")

    from benchmarks import machine, page  # late: a word of help does not wait for torch

    figures: dict[str, Any] = json.loads(options.figures.read_text()) if options.figures.exists() else {}
    for part in options.parts:
        if part == "page":
            continue
        print(f"{part} ...", flush=True)
        facts, began = machine.facts(), time.perf_counter()
        where = {"environments": options.environments} if part == "peers" else {}
        result = importlib.import_module(PARTS[part]).measure(tiny=options.tiny, **where)
        seconds = time.perf_counter() - began
        figures[part] = {
            "command": f"python -m benchmarks {part}" + (" --tiny" if options.tiny else ""),
            "date": machine.stamp(), "seconds": seconds, "tiny": options.tiny, "machine": facts, "result": result,
        }  # fmt: skip
        print(f"{part}: {seconds:.0f} s", flush=True)
        options.figures.parent.mkdir(parents=True, exist_ok=True)
        options.figures.write_text(json.dumps(figures, indent=1) + "\n")
    options.page.write_text(page.render(figures))
    print(f"written to {options.figures} and {options.page}")


if __name__ == "__main__":
    main()
