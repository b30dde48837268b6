"""A site as one process: it looks at itself, waits for the server, takes part, and ends with its own model."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.deploy.check import Check
from fedgraft.deploy.deployment import start_node, trusted
from fedgraft.deploy.processes import DELAYS, Programs, Say
from fedgraft.deploy.voice import SPOKEN, loud
from fedgraft.engines.flower.reach import NotYetError
from fedgraft.engines.flower.site import personal_model

AGAIN = 5.0
"""Seconds before a server that does not answer, or does not know the key yet, is asked again."""
LINGER = 10.0
"""Seconds that a node stays after its last reply: of a node that is gone, Flower gives the server no reply either."""
NODE = "supernode"


def take_part(check: Check, say: Say, *, verbose: bool = False) -> Path | None:
    """Take part in a federation until it is over; return the site's own model, if the method leaves one."""
    described, folder = check.described, check.site.absolute().parent
    check.at_home(say)
    _wait_for_server(check, say)
    words = Words(say)
    (folder / "flower").mkdir(exist_ok=True)
    with (
        disk.locked(folder / "flower"),
        Programs(folder, say=say, hears=loud(say, words.hear) if verbose else words.hear) as programs,
    ):
        config = {"site": str(check.site.absolute())}
        start_node(programs, NODE, check.address, config, trusted(*check.trust), delays=DELAYS)
        programs.wait_until(lambda: words.over, "the federation is over", seconds=float("inf"))
        time.sleep(LINGER)
        say("ending the SuperNode")
    try:
        return personal_model(described).absolute()
    except UserError:
        return None


def _wait_for_server(check: Check, say: Say) -> None:
    told = ""
    while True:
        try:
            return check.on_the_way(say)
        except NotYetError as error:
            if str(error) != told:
                say(f"waiting for the server: {error}")
                told = str(error)
            time.sleep(AGAIN)


@dataclass
class Words:
    """What the site's node says: sentences for people are passed on, and its last reply is waited for."""

    say: Say
    over: bool = False
    _done: bool = field(default=False, init=False)

    def hear(self, name: str, line: str) -> None:
        if line.startswith(SPOKEN):
            self.say(line.removeprefix(SPOKEN))
            self._done = self._done or line.startswith(f"{SPOKEN}done: ")
        elif "SuperNode ID: " in line:
            self.say("the server has let this site in; waiting for the others, and for work")
        elif self._done and "Sent successfully" in line:
            self.over = True
