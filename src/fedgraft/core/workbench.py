"""The live models of a worker, lent to one client after another."""

from dataclasses import dataclass, field

import torch

from fedgraft.core.model import Architecture, Model


@dataclass
class Workbench:
    """The live models of one worker: made once for each architecture, then lent to one client after another."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _models: dict[tuple[int, str], Model] = field(default_factory=dict)

    def model(self, architecture: Architecture, role: str = "own") -> Model:
        """Lend a live model; different roles (a student and its teacher) get different ones."""
        key = (id(architecture), role)
        if key not in self._models:
            self._models[key] = architecture.model(self.device)
        return self._models[key]

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that were lent."""
        return tuple(self._models.values())

    def clear(self) -> None:
        """Put away the models that keep state in Python, before the next client comes: its own would not be alone."""
        self._models = {key: model for key, model in self._models.items() if not model.stateful}
