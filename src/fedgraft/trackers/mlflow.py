"""MLflow: a run for each run, at the tracking server that MLFLOW_TRACKING_URI names, or in a local store."""

import tempfile
from pathlib import Path
from typing import Self

from mlflow.tracking import MlflowClient

from fedgraft.core.rounds import Round
from fedgraft.runs.run import Run
from fedgraft.trackers import metrics, parameters
from fedgraft.trackers.images import image


class MLflow:
    """Log into one experiment; ``uri`` is MLflow's tracking URI, by default the one MLflow itself would use."""

    name = "mlflow"

    def __init__(self, uri: str | None = None, experiment: str = "fedgraft") -> None:
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._open: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close("FAILED")

    def begin(self, run: Run) -> None:
        name = f"{run.method.name} seed {run.config.seed}"
        self._open = self._client.create_run(self._experiment, run_name=name).info.run_id
        for key, value in parameters(run).items():
            self._client.log_param(self._open, key, value)

    def round(self, run: Run, this: Round) -> None:
        if self._open is None:
            return
        step = this.number + 1
        for name, value in metrics(run.records[-1]).items():
            self._client.log_metric(self._open, name, value, step=step)
        for name, matrix in this.observed.items():
            picture = image(matrix)
            if picture is not None:
                self._client.log_image(self._open, picture, key=name, step=step)

    def end(self, run: Run) -> None:
        if self._open is not None:
            with tempfile.TemporaryDirectory() as folder:
                self._client.log_artifact(self._open, str(run.report(Path(folder) / "report.html")))
        self._close("FINISHED")

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._client.set_terminated(self._open, status)
            self._open = None
