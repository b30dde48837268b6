"""What a command that runs for hours tells: a line for everything that happens, with the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console

from fedgraft.deploy.journal import Journal
from fedgraft.deploy.processes import Hears, Say

SPOKEN = "fedgraft: "
"""How lines begin that our own half of a Flower app has for people; everything else is Flower's."""


@contextmanager
def telling(journal: Path | None = None) -> Iterator[Say]:
    """Lend a voice, which also writes to a ``journal``; in a terminal there is a sign of life besides."""
    console = Console(stderr=True, soft_wrap=True)
    kept = None if journal is None else Journal(journal)
    with console.status("") as status:

        def say(sentence: str) -> None:
            now = datetime.now().strftime("%H:%M:%S")
            for line in sentence.splitlines():
                console.print(f"{now}  {line}", highlight=False, markup=False)
                if kept is not None:
                    kept.write(line)
            status.update(sentence.partition(":")[0])

        yield say


def loud(say: Say, hears: Hears) -> Hears:
    """Also say everything that the programs say, in their own words."""

    def hear(name: str, line: str) -> None:
        if line.strip() and not line.startswith(SPOKEN):
            say(f"[{name}] {line}")
        hears(name, line)

    return hear
