"""Lists for a terminal: facts in columns, and points of a text."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def facts_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Make a table of facts: ``columns`` maps their keys to headings."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for number, heading in enumerate(columns.values()):
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[key])) for key in columns))
    return table


def bullets(text: str, width: int) -> str:
    """Fill a list of points, written for another width, to this one."""
    points = (" ".join(point.split()) for point in re.split(r"\n(?=- )", text))
    return "\n".join(textwrap.fill(point, width, subsequent_indent="  ", break_on_hyphens=False) for point in points)
