"""FedPPA: common layers are averaged, then aligned layer by layer with what the client's own layers did.

Prasetya, Saputra, Putra. FedPPA: Progressive Parameter Alignment for Personalized Federated Learning.
arXiv 2510.14698, 2025.

Symbols
    m_i^t      model of client i after its local training in round t: the teacher
    m_i^t+1    the same network with averaged layers: the student
    C_il       contributors to layer l of client i (FlexiFed's max-common)
    h^l(x; m)  output of layer l of model m: after normalisation, pooling and activation, d_l numbers

Round: client i trains m_i^t and uploads it; the server averages as FlexiFed does (Eqs. 1-2),

    m_i^t+1[l]  <-  1/|C_il| sum_{j in C_il} m_j^t[l]

and the client, before it trains again, takes one after another the layers with |C_il| >= 2 and makes steps (Eqs. 3-5)

    m_i^t+1[l]  <-  m_i^t+1[l] - align_lr grad 1/(B d_l) sum_{x in batch} ||h^l(x; m_i^t+1) - h^l(x; m_i^t)||^2

for ``align_epochs`` over its data. The model so aligned is what it receives: it is tested, and trained further.

Readings
- Direction: abstract and title speak of aligning local layers with the global model; Eqs. 4-5 move the averaged model
  towards the features of the previous local one. We follow the equations.
- Step: Eq. 4 has no step size and sums over all data, which diverges. We take the mean and small batches, plain SGD.
  The exact minimiser is the teacher itself, so alignment run to its end undoes the averaging: align_lr x steps is what
  counts, from 0 (FlexiFed) to infinity (local training). ``undone`` is kept for every round and client: the part
  of the displacement m_i^t+1 - m_i^t (over the aligned layers) that alignment took back.
- Which weights move with layer l is not said: layer l alone, the ones before being aligned already (``layer``); all up
  to l (``prefix``); or all layers at once on the sum of their losses (``joint``).
- Partners: Eq. 1 names clients i and i+1; we compare all clients with each other, as FlexiFed does. Eq. 2 is read as a
  mean over contributors.
- Algorithm 1 aligns on the server, which has no data. Here the client does it, after the download.
- Classifier: the fully connected layers at the end are averaged where they are common, but not aligned, as in FedAS;
  ``align_classifier`` aligns them too, ``include_classifier=False`` leaves them private: where clients of one
  architecture have hardly a class in common, that decides the accuracy before training, and is nearer to the
  published figures.
- BatchNorm is not mentioned. The teacher is in evaluation mode. ``statistics="refresh"`` normalises the student's
  moving layers by the batch and lets their statistics follow, because averaged statistics do not fit averaged weights;
  ``frozen`` keeps evaluation mode, in which the loss of a student equal to its teacher is exactly zero. Whether
  statistics are averaged at all is the run's ``buffers`` policy.
- Rate, epochs and batches of the alignment are not given: 0.01 and one epoch are FedAS's, batches of 64 FlexiFed's. The
  printed "learning rate decay" of 5e-4 for local training is the weight decay of FlexiFed's code.
- The published accuracies were presumably measured in training mode, as in FlexiFed's code; ours in evaluation mode.
- A layer that came back as it was sent is not aligned: nothing was averaged before the first training, and an absent
  client keeps what it has.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.evaluation import BATCH
from fedgraft.core.layers import Layer, Walk, before_classifier, layers_of, take
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.core.training import batches
from fedgraft.methods.flexifed import FlexiFed


@dataclass(frozen=True)
class FedPPA(FlexiFed):
    """Max-common averaging with progressive alignment."""

    name = "fedppa"
    family = "clients with different architectures"
    citation = "Prasetya et al., arXiv 2510.14698, 2025"
    idea = "average common layers, then align them one by one with the outputs of the client's previous layers"
    shows = {
        "undone": "the part of the way from the client's own layers to the averaged ones that alignment went back: 0 "
        "is none of it, 1 all"
    }

    align_lr: float = hyper(0.01, "step size of the alignment", low=0.0)
    align_epochs: int = hyper(1, "epochs of alignment for each layer", low=0)
    align_batch: int = hyper(64, "samples in a batch of the alignment", low=1)
    align: Literal["layer", "prefix", "joint"] = hyper(
        "layer",
        "what is trained for a layer: it alone, all up to it, or all at once",
        choices=("layer", "prefix", "joint"),
    )
    align_classifier: bool = hyper(False, "align the fully connected layers at the end of the network too")
    statistics: Literal["refresh", "frozen"] = hyper(
        "refresh", "BatchNorm of the layers being aligned", choices=("refresh", "frozen")
    )

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"weights": "aligned with features of the samples"}

    def assemble(self, client: Client, message: Message) -> Tensor:
        averaged = super().assemble(client, message)
        common = self.common(client, message["contributors"])
        displacement = take(averaged - client.own, common, "keep")
        client["undone"] = torch.zeros(())
        if not displacement.any() or not self.align_epochs:
            return averaged
        aligned = self.aligned(client, averaged, common)
        undone = take(averaged - aligned, common, "keep")
        client["undone"] = (undone @ displacement / displacement.square().sum()).float().cpu()
        return aligned

    def common(self, client: Client, contributors: Tensor) -> Sequence[Layer]:
        """Return the layers to align: those that were averaged with somebody's, always the leading ones."""
        network = layers_of(client.architecture)
        end = len(network) if self.align_classifier else before_classifier(network)
        return network[: min(end, int((contributors > 1).sum()))]

    def aligned(self, client: Client, averaged: Tensor, common: Sequence[Layer]) -> Tensor:
        """Align the averaged model with the client's own, from the first common layer to the last."""
        teacher = Walk(client.model(client.own, role="teacher"), common)
        student = Walk(client.model(averaged), common)
        x = client.data.train.batch(slice(None))[0].to(client.device)
        before_teacher = before_student = x
        rng, pairs = client.stream("alignment"), student.model.normalises_batches
        teacher.model.module.eval()
        for first, last in self.stretches(len(common)):
            moving = common[first:last]
            with self.normalising(student.model, moving, len(x)):
                for _ in range(self.align_epochs):
                    for index in batches(len(x), self.align_batch, rng, drop_last=False, pairs=pairs):
                        with torch.no_grad():
                            H = teacher.outputs(before_teacher[index], first, last)
                        h = student.outputs(before_student[index], first, last)
                        self.step(student.model, moving, h, H)
                        client.steps += 1
            if self.align == "layer":
                before_teacher = teacher.pass_on(before_teacher, first, BATCH)
                before_student = student.pass_on(before_student, first, BATCH)
        return client.trained(student.model, averaged)

    def stretches(self, depth: int) -> list[tuple[int, int]]:
        """Return which layers move together, one stretch after another."""
        return {
            "layer": [(layer, layer + 1) for layer in range(depth)],
            "prefix": [(0, layer + 1) for layer in range(depth)],
            "joint": [(0, depth)],
        }[self.align]

    def step(self, model: Model, moving: Sequence[Layer], h: Sequence[Tensor], H: Sequence[Tensor]) -> None:
        """One step of SGD on the distance between the student's outputs ``h`` and the teacher's ``H``."""
        matched = len(h) if self.align == "joint" else 1
        losses = [functional.mse_loss(ours, theirs) for ours, theirs in zip(h[-matched:], H[-matched:], strict=True)]
        gradient = model.differentiate(torch.stack(losses).sum())
        for span in (span for layer in moving for span in layer.spans):
            model.vector[span].sub_(gradient[span], alpha=self.align_lr)

    @contextmanager
    def normalising(self, model: Model, moving: Sequence[Layer], samples: int) -> Iterator[None]:
        """Evaluation mode, but for BatchNorm in the moving layers if its statistics are refreshed."""
        model.module.eval()
        if self.statistics == "refresh" and samples > 1:
            units = [model.module.get_submodule(name) for layer in moving for name in layer.modules]
            for module in (module for unit in units for module in unit.modules()):
                module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
        yield
        model.module.eval()

    # ---- for people
    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"undone": client.get("undone", torch.zeros(()))}

    def caveats(self) -> Sequence[str]:
        if self.align_epochs == 0:
            return ("align_epochs = 0 aligns nothing: FedPPA is then FlexiFed",)
        if self.align_lr == 0:
            return ("align_lr = 0 moves no weights: FedPPA is then FlexiFed, but for refreshed BatchNorm statistics",)
        return ()
