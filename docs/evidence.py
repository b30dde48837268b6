"""Make the pages of docs/results from the measurements that lie beside them: `make results`.

    python -m docs.evidence                          # every page and figure, from the data
    python -m docs.evidence --from DIR [--from DIR]  # take in finished runs first, wherever they lie
    python -m docs.evidence --partitions 300         # draw so many partitions first, for the page on draws
    python -m docs.evidence --board DIR              # take in what a board's directory holds

The words are in docs/results/*.md.jinja; every figure that was measured comes from the JSON files. A test holds that no
page is stale.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.machine import facts
from docs import agenda, draws_page, paper_page
from docs.agenda import RESULTS, Progress
from docs.board_page import Board
from docs.board_page import keep as keep_board
from docs.draws_page import Draws
from docs.paper_page import Words
from fedgraft.runs import reproduce

PARTITIONS = RESULTS / "draws.json"
PAGES = ("fedapa", "apple", "fedppa", "fedgpa", "draws", "board", "agenda")


@cache
def board() -> Board:
    """The board, for both of its pages: its intervals are drawn once."""
    return Board(RESULTS)


def draws() -> Draws:
    """The draws, for their page and its figures."""
    wanted = max(step.draws for step in agenda.steps())
    return Draws(reproduce.everything(RESULTS)["fedapa"], json.loads(PARTITIONS.read_text("utf-8")), wanted)


def render(page: str) -> str:
    """One page, from the data."""
    words = Environment(
        loader=FileSystemLoader(RESULTS), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    if page == "board":
        told: Any = board()
    elif page == "draws":
        told = draws()
    elif page == "agenda":
        told = Progress(reproduce.found_in([RESULTS]))
    else:
        told = Words(reproduce.everything(RESULTS)[page])
    return words.get_template(f"{page}.md.jinja").render(p=told).rstrip() + "\n"


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="taken", type=Path, action="append", default=[])
    parser.add_argument("--machine", help="where the runs of --from were made, if not here")
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--board", type=Path)
    asked = parser.parse_args()
    if asked.partitions:
        drawn = draws_page.partitions(reproduce.everything(RESULTS)["fedapa"].paper, asked.partitions)
        PARTITIONS.write_text(json.dumps(drawn) + "\n", "utf-8")
    here = facts()
    cores = "1 core" if here["cores"] == 1 else f"{here['cores']} cores"
    machine = asked.machine or f"{cores} of an {here['cpu']}, {here['memory_gib']} GiB"
    if asked.board:
        keep_board(asked.board, RESULTS, machine)
    if asked.taken:
        reproduce.keep(RESULTS, reproduce.found_in(asked.taken, machine))
    for page in PAGES:
        (RESULTS / f"{page}.md").write_text(render(page), "utf-8")
    (RESULTS / "board.html").write_text(board().page(), "utf-8")
    draws_page.figures(draws(), RESULTS)
    for evidence in reproduce.everything(RESULTS).values():
        paper_page.figures(evidence, RESULTS)


if __name__ == "__main__":
    main()
