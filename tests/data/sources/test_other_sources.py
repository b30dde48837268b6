"""Images, texts, torch datasets and those of Hugging Face, as sources of sites."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.data.federation import federate
from fedgraft.data.sources.texts import of_texts


def pictures(site: Path, count: int, classes: tuple[str, ...], *, size: int = 6, mode: str = "L") -> None:
    rng = np.random.default_rng(len(site.name))
    for name in classes:
        (site / name).mkdir(parents=True)
        for number in range(count):
            shade = rng.integers(0, 255, (size, size) if mode == "L" else (size, size, 3), np.uint8)
            Image.fromarray(shade).save(site / name / f"{number:03}.png")


def test_image_folders_are_split_class_by_class_and_called_by_their_names(tmp_path: Path) -> None:
    pictures(tmp_path / "north", 12, ("cat", "dog"))
    pictures(tmp_path / "south", 20, ("dog", "bird"))
    fed = federate(tmp_path)
    assert fed.names == ("north", "south")
    assert fed.fitted is not None
    assert fed.fitted.labels == ("bird", "cat", "dog")
    assert fed.counts().tolist() == [[0, 9, 9], [15, 0, 15]]
    assert [len(client.test) for client in fed.clients] == [6, 10]
    halves = federate(tmp_path, test_share=0.5)
    assert [len(client.test) for client in halves.clients] == [12, 20]
    assert fg.run("fedavg", dataset=str(tmp_path), rounds=1, workers=1).result["names"] == ["north", "south"]


def test_folders_of_train_and_test_are_kept_and_numbers_stay_numbers(tmp_path: Path) -> None:
    for site in ("a", "b"):
        pictures(tmp_path / site / "train", 3, ("0", "2-ill"))
        pictures(tmp_path / site / "test", 1, ("2-ill",))
    fed = federate(tmp_path)
    assert fed.counts().tolist() == [[3, 0, 3]] * 2
    assert fed.fitted is not None
    assert fed.fitted.labels == ("0", "1", "2-ill")
    with pytest.raises(UserError, match=r"test_share = 0.5 is of no effect on .*split into train and test"):
        federate(tmp_path, test_share=0.5)


def test_one_coloured_site_makes_all_coloured(tmp_path: Path) -> None:
    pictures(tmp_path / "grey", 10, ("x", "y"))
    pictures(tmp_path / "colour", 10, ("x", "y"), mode="RGB")
    assert federate(tmp_path).input_shape == (3, 6, 6)


def test_grey_images_of_16_bits_keep_their_range_in_8(tmp_path: Path) -> None:
    for part, name, value in (("train", "0", 0), ("train", "1", 65535), ("test", "1", 257 * 90)):
        home = tmp_path / "deep" / part / name
        home.mkdir(parents=True)
        Image.fromarray(np.full((6, 6), value, np.uint16)).save(home / "a.png")
    fed = federate(tmp_path)
    assert fed.input_shape == (1, 6, 6)
    assert fed.clients[0].train.inputs[:, 0, 0, 0].tolist() == [0, 255]
    assert fed.clients[0].test.inputs[:, 0, 0, 0].tolist() == [90]
    assert fed.notes == ()
    pictures(tmp_path / "flat" / "train", 3, ("0", "1"), mode="RGB")
    pictures(tmp_path / "flat" / "test", 1, ("0", "1"), mode="RGB")
    assert federate(tmp_path).clients[0].train.inputs[1, 0, 0].tolist() == [255, 255, 255]


def test_what_8_bits_cannot_keep_is_said(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("0", "1"):
            home = tmp_path / "scans" / part / name
            home.mkdir(parents=True)
            Image.fromarray(np.full((6, 6), 4095, np.uint16)).save(home / "a.tif")
    (note,) = federate(tmp_path).notes
    assert "the brightest pixel becomes 16: if their values end earlier, as those of 12 bits do" in note
    for kind, mode in ((np.int32, "I"), (np.float32, "F")):
        Image.fromarray(np.ones((6, 6), kind)).save(home / "a.tif")
        with pytest.raises(
            UserError, match=rf"a\.tif is grey with up to 32 bits for a pixel \(mode {mode}\).* 8 or 16"
        ):
            federate(tmp_path)


def test_folders_of_one_number_are_not_made_one_class(tmp_path: Path) -> None:
    pictures(tmp_path / "a", 12, ("0", "1-mild"))
    pictures(tmp_path / "b", 12, ("0", "1-severe"))
    with pytest.raises(UserError, match="the folders 1-mild and 1-severe begin with the same number"):
        federate(tmp_path)


def test_a_site_with_numbered_folders_shares_the_classes_of_one_without(tmp_path: Path) -> None:
    pictures(tmp_path / "a", 12, ("1-mild", "well"))
    pictures(tmp_path / "b", 12, ("1-mild", "2-severe"))
    fed = federate(tmp_path)
    assert fed.fitted is not None
    assert fed.fitted.labels == ("1-mild", "2-severe", "well")
    assert fed.counts().tolist() == [[9, 0, 9], [9, 9, 0]]


def test_images_that_will_not_do(tmp_path: Path) -> None:
    pictures(tmp_path / "a", 5, ("x", "y"))
    with pytest.raises(UserError, match="has 10 images, too few to split: a site needs 20, or folders train and test"):
        federate(tmp_path)
    pictures(tmp_path / "one" / "a", 30, ("x",))
    with pytest.raises(UserError, match="called 'x': there are no two classes"):
        federate(tmp_path / "one")
    pictures(tmp_path / "three" / "a", 30, ("3",))
    with pytest.raises(UserError, match="called '3': there are no two classes"):
        federate(tmp_path / "three")
    with pytest.raises(UserError, match="split = 'random' is for tables"):
        federate(tmp_path, split="random")


VERSES = "to be or not to be that is the question " * 20


def test_texts_are_windows_of_characters(tmp_path: Path) -> None:
    (tmp_path / "hamlet.txt").write_text(VERSES)
    (tmp_path / "ophelia.txt").write_text(VERSES.upper() + "Ä")
    fed = federate(tmp_path, window=8)
    assert fed.task.name == "next-token"
    assert fed.fitted is not None
    assert "Ä" not in fed.fitted.characters, "a character that one site has once is told to nobody"
    first = fed.clients[0].train
    tokens = [fed.fitted.characters.index(character) for character in VERSES[:9]]
    assert first.inputs[0].tolist() == tokens[:8]
    assert first.labels[0] == tokens[8]
    assert first.inputs[1].tolist() == [fed.fitted.characters.index(character) for character in VERSES[4:12]]
    with pytest.raises(UserError, match="too short to train on windows of 900"):
        federate(tmp_path, window=900)


def test_a_tokenizer_of_ones_own() -> None:
    words = {word: number for number, word in enumerate(sorted(set(VERSES.split())))}
    found = of_texts({"a": VERSES, "b": VERSES}, tokenizer=lambda text: [words.get(word, 0) for word in text.split()])
    fed = fg.own_data(found.sites, task=found.task)
    assert fed.task.outputs == len(words)
    assert fed.example.dtype == torch.int64


class Coins(Dataset[Any]):
    """Images of PIL with whole numbers, as torchvision gives them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        return Image.new("L", (4, 4), at), at % 2


def test_torch_datasets() -> None:
    fed = fg.own_data([fg.torch_site(Coins(10), Coins(4), name="mint"), fg.torch_site(Coins(8), Coins(4), Coins(2))])
    assert fed.input_shape == (1, 4, 4)
    assert len(fed.clients[1].validation) == 2
    plain = TensorDataset(torch.randn(6, 3), torch.arange(6) % 2)
    assert fg.own_data([fg.torch_site(plain, plain)]).input_shape == (3,)
    with pytest.raises(UserError, match="pairs of sample and target"):
        fg.torch_site(TensorDataset(torch.zeros(3, 1)), plain)
    with pytest.raises(UserError, match="the train dataset of x is empty"):
        fg.torch_site([], plain, name="x")


def test_datasets_of_hugging_face(tmp_path: Path) -> None:
    import datasets

    rows = {"clinic": ["a", "b"] * 20, "age": list(range(40)), "ill": [0, 1, 1, 0] * 10}
    features = datasets.Features(
        {
            "clinic": datasets.Value("string"),
            "age": datasets.Value("int64"),
            "ill": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(tmp_path / "whole")
    fed = federate(tmp_path / "whole", site_column="clinic", target="ill")
    assert fed.names == ("a", "b")
    assert fed.fitted is not None
    assert fed.fitted.labels == ("no", "yes")
    datasets.DatasetDict({"train": whole, "test": whole.select(range(8))}).save_to_disk(tmp_path / "split")
    kept = federate(tmp_path / "split", site_column="clinic", target="ill")
    assert [(len(client.train), len(client.test)) for client in kept.clients] == [(20, 4)] * 2


def test_images_of_hugging_face_may_have_16_bits(tmp_path: Path) -> None:
    import datasets

    scans = [Image.fromarray(np.full((4, 4), 257 * shade, np.uint16)) for shade in range(40)]
    rows = {"clinic": ["a", "b"] * 20, "scan": scans, "ill": [0, 1, 1, 0] * 10}
    features = datasets.Features(
        {"clinic": datasets.Value("string"), "scan": datasets.Image(), "ill": datasets.Value("int64")}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "scans")
    fed = federate(tmp_path / "scans", site_column="clinic", target="ill")
    assert fed.input_shape == (1, 4, 4)
    first = fed.clients[0]
    held = sorted(torch.cat([first.train.inputs, first.test.inputs])[:, 0, 0, 0].tolist())
    assert held == list(range(0, 40, 2))
    assert "the brightest pixel becomes 39" in fed.notes[0]
