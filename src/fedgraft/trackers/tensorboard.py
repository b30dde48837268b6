"""TensorBoard: ``tensorboard --logdir runs`` shows all runs below that folder."""

from pathlib import Path
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from fedgraft.core.rounds import Round
from fedgraft.runs.run import Run
from fedgraft.trackers import metrics, parameters
from fedgraft.trackers.images import image


class TensorBoard:
    """Write event files into the run's directory, in ``tensorboard/``, or below a folder of your own."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._writer: SummaryWriter | None = None
        self._place = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def begin(self, run: Run) -> None:
        self._close()
        name = f"{run.method.name}-seed{run.config.seed}" if run.directory is None else run.directory.name
        if self._folder is None and run.directory is not None:
            self._place = run.directory / "tensorboard"
        else:
            self._place = (self._folder or Path("runs") / "tensorboard") / name
        self._writer = SummaryWriter(str(self._place))
        table = "\n".join(f"| {key} | {value} |" for key, value in parameters(run).items())
        self._writer.add_text("parameters", f"| setting | value |\n|---|---|\n{table}")

    def round(self, run: Run, this: Round) -> None:
        if self._writer is None:
            return
        step = this.number + 1
        for name, value in metrics(run.records[-1]).items():
            self._writer.add_scalar(name, value, step)
        for name, matrix in this.observed.items():
            picture = image(matrix)
            if picture is not None:
                self._writer.add_image(name, picture, step, dataformats="HWC")

    def end(self, run: Run) -> None:
        """TensorBoard has no artifacts, so the report lies beside the event files and a text says where."""
        if self._writer is not None:
            report = run.report(self._place / "report.html")
            self._writer.add_text("report", f"the report of this run is in {report.name}, beside the event files")
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
