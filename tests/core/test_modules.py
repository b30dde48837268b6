"""Modules as people write them: with numbers of Python's and NumPy's own generators, and with state in attributes."""

import random
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from conftest import CLASSES, blobs, simulate, specification
from torch import Tensor, nn

import fedgraft
from fedgraft.base.errors import UserError
from fedgraft.core.model import Architecture
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg

EXAMPLE = torch.zeros(2, 6)


class Plain(nn.Module):
    """A small network; the others differ from it in what they do besides."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.middle(torch.relu(self.body(x)))))

    def middle(self, z: Tensor) -> Tensor:
        return z


class PythonDropout(Plain):
    def middle(self, z: Tensor) -> Tensor:
        return z * (0.5 + random.random()) if self.training else z


class NumpyNoise(Plain):
    def middle(self, z: Tensor) -> Tensor:
        return z + float(np.random.standard_normal()) if self.training else z  # noqa: NPY002


class NumpyStart(Plain):
    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.head.bias, float(np.random.random()) + random.random())  # noqa: NPY002


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def middle(self, z: Tensor) -> Tensor:
        self.calls += 1
        return z * (1 + 0.1 * self.calls)


class Remembering(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor | None = None

    def middle(self, z: Tensor) -> Tensor:
        mean = z.detach().mean(0)
        self.before = mean if self.before is None else 0.9 * self.before + 0.1 * mean
        return z - self.before


MODULES = [PythonDropout, NumpyNoise, NumpyStart, Counting, Remembering]


class Settling(Plain):
    """Puts a part of itself into evaluation mode, which every training begins without."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5))  # type: ignore[assignment]

    def middle(self, z: Tensor) -> Tensor:
        self.body.eval()
        return z


class Frozen(Settling):
    """Has a part that is never in training mode, as its own ``train`` sees to."""

    def middle(self, z: Tensor) -> Tensor:
        return z

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.body.eval()
        return self


@pytest.mark.parametrize(("kind", "training"), [(Settling, True), (Frozen, False)])
def test_every_training_begins_in_the_modules_own_training_mode(kind: type[Settling], training: bool) -> None:
    model = Architecture(kind, EXAMPLE).model()
    for _ in range(2):
        model.train_on(2)
        assert model.module.training
        assert model.module.get_submodule("body.1").training == training
        model(EXAMPLE)
    with model.evaluating():
        assert not model.module.training


@pytest.mark.parametrize("kind", MODULES)
def test_the_bits_do_not_depend_on_the_number_of_workers(fed: Federation, kind: Callable[[], nn.Module]) -> None:
    ended = []
    for workers in (1, 2, 3):
        random.seed(workers)  # whatever the caller has drawn before
        np.random.seed(workers)  # noqa: NPY002
        done, server, engine = simulate(FedAvg(), fed, specification(fed, rounds=2, build=kind), workers=workers)
        own = [engine.states[client]["own"] for client in range(4)]
        ended.append((server["weights/0"], *own, torch.tensor(done[-1].test["trained"].figures["log_loss"].pooled)))
    for other in ended[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ended[0], other, strict=True))


def test_state_in_python_is_found_and_named() -> None:
    assert Architecture(Counting, EXAMPLE).state == ("calls",)
    assert Architecture(Remembering, EXAMPLE).state == ("before",)
    for kind in (Plain, PythonDropout, NumpyNoise, NumpyStart):
        assert Architecture(kind, EXAMPLE).state == (), kind


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn-apple", "cnn-fedgpa"])
@pytest.mark.parametrize("choice", ["native", "torch"])
def test_our_own_models_have_none(name: str, choice: str) -> None:
    from fedgraft import kernels, models

    shape = (3, 32, 32)
    example = torch.rand(2, *shape).contiguous(memory_format=torch.channels_last)

    def build() -> nn.Module:
        return kernels.accelerate(models.build(name, shape, 10), choice=choice).module  # type: ignore[arg-type]

    assert Architecture(build, example, "head").state == ()


def test_a_run_says_that_state_is_not_kept() -> None:
    run = fedgraft.run("fedavg", blobs(), model=Counting, rounds=1, workers=1)
    assert [note for note in run.notes if "state of its own in Python (calls)" in note]
    assert not fedgraft.run("fedavg", blobs(), model=Plain, rounds=1, workers=1).notes


def test_the_callers_own_numbers_go_on_as_if_nothing_had_been(fed: Federation) -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    simulate(FedAvg(), fed, specification(fed, rounds=1, build=NumpyNoise))
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


# modules and settings that do not fit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_module_of_another_precision_is_refused_in_a_sentence(dtype: torch.dtype) -> None:
    with pytest.raises(
        UserError, match=f"the module has {str(dtype)[6:]} weights and the samples are float32: call its"
    ):
        fedgraft.run("fedavg", blobs(), model=lambda: Plain().to(dtype), rounds=1, workers=1)


class Reading(nn.Module):
    """Classifies sequences of tokens by the mean of their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.dtype == torch.int64
        return cast(Tensor, self.head(self.embedding(tokens).mean(1)))


def sentences(dtype: type[np.generic]) -> Federation:
    """Sequences of eight tokens; a class has words of its own."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        return (15 * y[:, None] + rng.integers(0, 15, (count, 8))).astype(dtype), y

    return own_data([Site(*draw(60), *draw(30)) for _ in range(3)], task=f"classification:{CLASSES}")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_tokens_reach_the_network_as_whole_numbers(dtype: type[np.generic]) -> None:
    run = fedgraft.run("fedavg", sentences(dtype), model=Reading, rounds=5, lr=0.5, workers=1)
    assert run.value > 0.9


def test_whole_numbers_reach_a_network_that_takes_none_as_floats() -> None:
    whole, floats = sentences(np.int64), sentences(np.float32)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, CLASSES))

    ended = [fedgraft.run("fedavg", fed, model=network, rounds=2, lr=0.01, workers=1).server for fed in (whole, floats)]
    assert ended[0] is not None
    assert ended[1] is not None
    assert torch.equal(ended[0]["weights/0"], ended[1]["weights/0"])


def test_batch_normalisation_and_batches_of_one() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))

    with pytest.raises(
        UserError, match="BatchNorm cannot train on batches of one sample: batch_size has to be at least 2"
    ):
        fedgraft.run("fedavg", blobs(), model=build, batch_size=1, rounds=1, workers=1)
    assert fedgraft.run("fedavg", blobs((4, 1)), model=build, batch_size=3, rounds=1, workers=1).result


@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
def test_rates_that_no_float_can_hold_are_refused_in_a_sentence(setting: str) -> None:
    with pytest.raises(UserError, match=rf"training.{setting} should be less than or equal to 1000000, not 1e\+308"):
        fedgraft.run("local", blobs(), rounds=1, workers=1, **{setting: 1e308})
    with pytest.raises(UserError, match=r"fedprox: mu is a number, not 1e\+308"):
        METHODS.make("fedprox", mu=1e308)
