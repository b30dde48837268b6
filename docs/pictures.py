"""Pictures of the pages: SVG whose words stay words."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraft.report.figures import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(path: Path, draw: Callable[[], "Figure"]) -> None:
    """Draw a figure into a file."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE | {"svg.fonttype": "none"}):
        draw().savefig(path, metadata={"Date": None})
