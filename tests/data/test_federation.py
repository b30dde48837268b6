"""Federations from datasets and from people's own data."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraft.core.errors import UserError
from fedgraft.data.federation import Site, federate, own_data
from fedgraft.data.partition import Dirichlet


def test_digits_are_split_over_clients() -> None:
    fed = federate("digits", clients=10, partition="dirichlet:0.1", seed=0)
    assert len(fed) == 10
    assert fed.classes == 10
    assert fed.input_shape == (1, 8, 8)
    assert fed.counts().sum() == sum(fed.samples)
    again = federate("digits", clients=10, partition=Dirichlet(0.1), seed=0)
    assert all(torch.equal(a.train.inputs, b.train.inputs) for a, b in zip(fed.clients, again.clients, strict=True))
    other = federate("digits", clients=10, partition="dirichlet:0.1", seed=1)
    assert fed.samples != other.samples


def test_validation_comes_from_the_training_samples() -> None:
    whole = federate("digits", clients=5, partition="iid")
    fed = federate("digits", clients=5, partition="iid", validation=0.2)
    for before, after in zip(whole.clients, fed.clients, strict=True):
        assert len(after.validation) == int(0.2 * len(before.train))
        assert len(after.train) + len(after.validation) == len(before.train)
        rows = torch.cat([after.train.inputs, after.validation.inputs]).flatten(1)
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, before.train.inputs.flatten(1).tolist()))


def test_a_saved_partition_is_used_again(tmp_path: Path) -> None:
    from fedgraft.data.datasets import load

    digits = load("digits")
    drawn = Dirichlet(0.5).split(digits.y_train, digits.y_test, 4, 3)
    drawn.save(tmp_path / "mine.json")
    fed = federate("digits", clients=4, partition=str(tmp_path / "mine.json"))
    assert fed.samples == tuple(len(indices) for indices in drawn.train)
    with pytest.raises(UserError, match="for 4 clients, not 5"):
        federate("digits", clients=5, partition=str(tmp_path / "mine.json"))


def test_images_can_be_resized() -> None:
    fed = federate("digits", clients=2, partition="iid", resize=4)
    assert fed.input_shape == (1, 4, 4)


def site(**changes: np.ndarray) -> Site:
    arrays = {
        "x_train": np.zeros((4, 3), np.float32), "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((2, 3), np.float32), "y_test": np.array([0, 1]),
    }  # fmt: skip
    return Site(**(arrays | changes))


def test_own_data() -> None:
    fed = own_data([site(), site(y_train=np.array([0, 2, 0, 1]))])
    assert (len(fed), fed.classes, fed.input_shape) == (2, 3, (3,))
    images = own_data([site(x_train=np.zeros((4, 6, 5), np.uint8), x_test=np.zeros((2, 6, 5), np.uint8))])
    assert images.input_shape == (1, 6, 5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y_train": np.array([0, 1])}, "site 0, train: 4 samples but 2 labels"),
        ({"y_test": np.array([0, -1])}, "site 0, test: there is a negative label"),
        ({"y_train": np.array([0.0, 1, 0, 1])}, "labels are whole numbers"),
        ({"x_train": np.full((4, 3), np.nan)}, "not finite"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, "no samples"),
        ({"x_train": np.zeros((4, 2), np.float32)}, None),
    ],
)
def test_own_data_that_cannot_be_used_is_refused_in_a_sentence(changes: dict, sentence: str | None) -> None:
    if sentence is None:
        with pytest.raises(UserError, match="different shapes"):
            own_data([site(), site(**changes)])
        return
    with pytest.raises(UserError, match=sentence):
        own_data([site(**changes)])


def test_a_folder_of_sites(tmp_path: Path) -> None:
    for name in ("b", "a"):
        np.savez(tmp_path / f"{name}.npz", **vars(site(x_train=np.full((4, 3), ord(name), np.float32))))
    fed = federate(tmp_path)
    assert [float(client.train.inputs[0, 0]) for client in fed.clients] == [97.0, 98.0], "in order of their names"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.npz file"):
        federate(tmp_path / "empty")


def test_impossible_wishes() -> None:
    with pytest.raises(UserError, match="too few for 5000 clients"):
        federate("digits", clients=5000)
    with pytest.raises(UserError, match="at least one client"):
        federate("digits", clients=0)
    with pytest.raises(UserError, match="validation is a share"):
        federate("digits", clients=2, partition="iid", validation=1.5)


def test_a_folder_does_not_hide_a_dataset_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert federate("digits", clients=2, partition="iid").classes == 10
