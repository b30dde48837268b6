"""What stands for a character that a terminal's encoding lacks: pictures stay pictures under an ASCII locale."""

import codecs
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STAND_INS = str.maketrans({
    "█": "#", "▇": "*", "▆": "+", "▅": "=", "▄": ":", "▃": "-", "▂": ".", "▁": "_",
    "▓": "*", "▒": ":", "░": ".", "│": "|", "─": "-", "━": "-", "╸": "-", "╺": "-", "·": ",", "±": "~", "…": "~",
    "→": ">", "▸": ">", "×": "x", "–": "-", "—": "-", "\N{MINUS SIGN}": "-", "‘": "'", "’": "'", "“": '"', "”": '"',
})  # fmt: skip
_NAME = "fedgraft-stand-in"
QUIET = 3.0
"""Seconds after which somebody who waits wants to know for what."""


def stand_in(error: UnicodeError) -> tuple[str, int]:
    """Give one character for each that cannot be written, so that columns stay in line."""
    assert isinstance(error, UnicodeEncodeError)
    wanted = error.object[error.start : error.end].translate(_STAND_INS)
    return "".join(c if c.isascii() else "?" for c in wanted), error.end


def make_do() -> None:
    """Let the standard streams write what they can."""
    codecs.register_error(_NAME, stand_in)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)


def console(*, stderr: bool = True) -> "Console":
    """A console that draws the same everywhere: what an encoding lacks has a stand-in when it is written."""
    from rich.console import Console

    class Wide(Console):
        @property
        def encoding(self) -> str:
            return "utf-8"

    return Wide(stderr=stderr)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Say what is being done, on stderr: one line that changes in a terminal, a line every few seconds elsewhere."""
    from rich.markup import escape

    screen = console()
    if screen.is_terminal:
        with screen.status("beginning") as status:
            yield lambda sentence: status.update(escape(sentence))
        return
    spoken = time.monotonic()

    def say(sentence: str) -> None:
        nonlocal spoken
        if time.monotonic() - spoken > QUIET:
            spoken = time.monotonic()
            print(sentence, file=sys.stderr, flush=True)

    yield say


def as_text(picture: "RenderableType") -> str:
    """What a terminal of eighty columns would show, without its colours."""
    return _recorded(picture).export_text().rstrip()


def as_html(picture: "RenderableType") -> str:
    """The same for a notebook; what others wrote is escaped."""
    style = "<pre style='line-height: normal; font-family: monospace; text-align: left'>{code}</pre>"
    return _recorded(picture).export_html(inline_styles=True, code_format=style)


def _recorded(picture: "RenderableType") -> "Console":
    from rich.console import Console

    recorder = Console(width=80, record=True, file=io.StringIO(), force_jupyter=False)
    recorder.print(picture)
    return recorder
