"""Federations from datasets and from people's own data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgraft.base.errors import UserError
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
    assert federate("digits", partition=str(tmp_path / "mine.json")).samples == fed.samples
    with pytest.raises(UserError, match="for 4 clients, not 5"):
        federate("digits", clients=5, partition=str(tmp_path / "mine.json"))
    lists = '"train": [[0], [1]], "test": [[2], [1797]]'
    (tmp_path / "far.json").write_text(
        '{"format": "fedgraft partition", "version": 1, "scheme": "mine", "seed": 0, ' + lists + "}"
    )
    with pytest.raises(
        UserError, match=r"the partition uses sample 1797, but the dataset has only 1797 .* another dataset"
    ):
        federate("digits", clients=2, partition=str(tmp_path / "far.json"))


def test_images_can_be_resized() -> None:
    fed = federate("digits", clients=2, partition="iid", resize=4)
    assert fed.input_shape == (1, 4, 4)


def site(**changes: Any) -> Site:
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
        ({"y_train": np.array([0, 1])}, "x_train in site 0 has 4 samples but y_train has 2 labels"),
        ({"y_test": np.array([0, -1])}, "y_test in site 0 holds the negative label -1"),
        ({"y_train": np.array([0.0, 1, 0, 1])}, "y_test in site 0 is int64 but y_train is float64"),
        ({"y_train": np.array([0.0, 1, 0, 1]), "y_test": np.array([0.0, 1])}, "say whether they are classes"),
        ({"x_train": np.full((4, 3), np.nan)}, "x_train in site 0 holds NaN"),
        ({"x_test": np.full((2, 3), 1e39)}, "x_test in site 0 holds .* such that float32 cannot hold"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, "x_train in site 0 is empty"),
        ({"y_test": np.array([0, 10**7])}, "y_test in site 0 holds the label 10000000"),
        ({"x_train": np.zeros((4, 2), np.float32)}, r"x_test in site 0 has samples of float32 \(3,\)"),
        ({"x_train": torch.zeros(4, 3, dtype=torch.complex64)}, "x_train in site 0 is complex64"),
        ({"x_train": torch.zeros(4, 3).to_sparse()}, "x_train in site 0 is not an array of numbers"),
        ({"x_train": [[1.0], [1.0, 2.0], [], []]}, "x_train in site 0 is not an array of numbers"),
        ({"x_train": torch.zeros(4, 3, 8, 8, dtype=torch.uint8)}, "the channels first"),
        ({"x_val": np.zeros((1, 3), np.float32)}, "only one of x_val and y_val"),
        ({"name": "s" * 101}, "has 101 characters"),
        ({"name": "two\nlines"}, "a text in one line"),
        ({"name": ""}, "a text in one line"),
    ],
)
def test_own_data_that_cannot_be_used_is_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        own_data([site(**changes)])
    assert "\n" not in str(refused.value)


def test_sites_have_to_agree() -> None:
    wider = {part: np.zeros((size, 2), np.float32) for part, size in (("x_train", 4), ("x_test", 2))}
    with pytest.raises(UserError, match=r"different shapes: \(2,\), \(3,\)"):
        own_data([site(), site(**wider)])
    tokens = {part: np.zeros((size, 3), int) for part, size in (("x_train", 4), ("x_test", 2))}
    with pytest.raises(UserError, match="different types: float32, int64"):
        own_data([site(), site(**tokens)])
    with pytest.raises(UserError, match="two sites are called 'a'"):
        own_data([site(name="a"), site(name="a")])
    with pytest.raises(UserError, match=r"y_train in site 'b' holds the label 2; labels must be 0\.\.1"):
        own_data([site(), site(name="b", y_train=np.array([0, 2, 0, 1]))], task="classification:2")
    with pytest.raises(UserError, match="up to 100,000 classes"):
        own_data([site()], task=f"classification:{10**9}")


def test_a_small_site_may_hold_high_labels() -> None:
    """Labels are compared with the samples of all sites: one with two samples may hold the last of ten classes."""
    large = {"x_train": np.zeros((20, 3)), "y_train": np.arange(20) % 9}
    small = {"x_train": np.zeros((1, 3)), "y_train": np.array([9]), "x_test": np.zeros((1, 3)), "y_test": np.array([9])}
    assert own_data([site(**large), site(**small)]).classes == 10


def test_tensors_are_as_good_as_arrays() -> None:
    plain = own_data([site()])
    tensors = {key: torch.from_numpy(value) for key, value in site().arrays().items()}
    of_tensors = own_data([Site(**tensors)])
    grown = own_data([Site(**(tensors | {"x_train": tensors["x_train"].bfloat16().requires_grad_()}))])
    for fed in (of_tensors, grown):
        assert torch.equal(fed.clients[0].train.inputs, plain.clients[0].train.inputs)
        assert torch.equal(fed.clients[0].test.labels, plain.clients[0].test.labels)


def test_tokens_stay_whole_numbers() -> None:
    tokens = {part: np.full((size, 3), 2**31, int) for part, size in (("x_train", 4), ("x_test", 2))}
    assert own_data([site(**tokens)]).example.tolist() == [[2**31] * 3] * 2


def test_validation_samples_of_a_site_are_used(tmp_path: Path) -> None:
    own = {"x_val": np.full((3, 3), 5.0, np.float32), "y_val": np.array([1, 1, 0])}
    fed = own_data([site(name="a", **own), site(name="b")], validation=0.5)
    assert fed.clients[0].validation.inputs.unique().tolist() == [5.0]
    assert [len(part.validation) for part in fed.clients] == [3, 2]
    assert [len(part.train) for part in fed.clients] == [4, 2]
    assert fed.notes == ("validation = 0.5 is not for the sites that bring validation samples of their own (x_val): a",)
    np.savez(tmp_path / "one.npz", **site(**own).arrays())
    assert [len(client.validation) for client in federate(tmp_path).clients] == [3]
    split = federate(tmp_path / "one.npz", clients=2, partition="iid")
    assert "one has validation samples (x_val), which a split over clients does not use" in split.notes[0]


def pictures(values: tuple[int, ...], *, colours: bool = False) -> Site:
    x = np.array(values, np.uint8).repeat(16).reshape(len(values), 4, 4)
    x = np.stack([x, x // 2, np.full_like(x, 7)], axis=-1) if colours else x
    y = np.arange(len(values)) % 2
    return site(x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])


def test_standard_takes_the_statistics_of_everybodys_training_pixels(tmp_path: Path) -> None:
    """The mean of 0, 0, 0, 255 in [0, 1] is 1/4, their deviation sqrt(3)/4: 0 becomes -1/sqrt(3), 255 sqrt(3)."""
    one, two = pictures((0, 255)), pictures((0, 0))
    fed = own_data([one, two], normalise="standard")
    batch = fed.clients[0].train.batch(slice(None))[0]
    np.testing.assert_allclose(batch[:, 0, 0, 0], [-1 / np.sqrt(3), np.sqrt(3)], rtol=1e-6)
    assert (fed.clients[1].train.batch(slice(None))[0] == batch[0, 0, 0, 0]).all()
    for name, each in (("a", one), ("b", two)):
        np.savez(tmp_path / f"{name}.npz", **each.arrays())
    of_files = federate(tmp_path, normalise="standard")
    assert torch.equal(of_files.clients[0].train.batch(slice(None))[0], batch)
    np.savez(tmp_path / "all.npz", **{k: np.concatenate([one.arrays()[k], two.arrays()[k]]) for k in one.arrays()})
    split = federate(tmp_path / "all.npz", clients=1, partition="iid", normalise="standard")
    assert split.clients[0].train.batch(slice(None))[0].unique().tolist() == batch.unique().tolist()


def test_colours_are_normalised_each_for_itself() -> None:
    batch = own_data([pictures((0, 254), colours=True)], normalise="standard").clients[0].train.batch(slice(None))[0]
    np.testing.assert_allclose(batch[:, :2, 0, 0], [[-1, -1], [1, 1]], rtol=1e-5)
    np.testing.assert_allclose(batch[:, 2], 0, atol=1e-5)  # all alike: nothing to divide by


@pytest.mark.parametrize("wish", [{"normalise": "standard"}, {"augment": True}, {"resize": 8}])
def test_features_are_taken_as_they_are(tmp_path: Path, wish: dict[str, Any]) -> None:
    np.savez(tmp_path / "one.npz", **site().arrays())
    for make in (lambda: own_data([site()], **wish), lambda: federate(tmp_path / "one.npz", 2, "iid", **wish)):
        with pytest.raises(UserError, match=f"{next(iter(wish))}.* is for images given as bytes"):
            make()


def test_a_folder_of_sites(tmp_path: Path) -> None:
    for name in ("b", "a"):
        np.savez(tmp_path / f"{name}.npz", **site(x_train=np.full((4, 3), ord(name), np.float32)).arrays())
    fed = federate(tmp_path)
    assert fed.names == ("a", "b")
    assert federate(tmp_path, clients=2, partition="own").samples == fed.samples
    for wish, sentence in (
        ({"clients": 3}, "holds the files of 2 sites, so there cannot be 3 clients"),
        ({"partition": "iid"}, "their data are not split by iid"),
        ({"partition": Dirichlet(0.1)}, "are not split by a partition"),
        ({"data_dir": tmp_path}, "data_dir is where datasets are found by their names"),
    ):
        with pytest.raises(UserError, match=sentence):
            federate(tmp_path, **wish)
    assert [float(client.train.inputs[0, 0]) for client in fed.clients] == [97.0, 98.0], "in order of their names"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no data of sites: put one \.npz"):
        federate(tmp_path / "empty")


def test_a_folder_of_one_class_has_nothing_to_tell_apart(tmp_path: Path) -> None:
    alone = site(y_train=np.ones(4, int), y_test=np.ones(2, int)).arrays()
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", **alone)
    with pytest.raises(UserError, match=r"all samples of all sites in .* are of class 1: there are no two classes"):
        federate(tmp_path)
    with pytest.raises(UserError, match="there are no two classes"):
        federate(tmp_path, task="classification:3")
    assert federate(tmp_path, task="regression").task.name == "regression"
    np.savez(tmp_path / "b.npz", **site().arrays())
    assert federate(tmp_path).classes == 2


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
