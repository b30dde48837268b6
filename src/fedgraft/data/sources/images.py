"""Images: a folder for each site, with a folder for each class."""

import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.data.datasets.formats import Array, affordable, sentences
from fedgraft.data.site import Site
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.source import FEWEST, Found, Reading, Source

if TYPE_CHECKING:
    from PIL import Image as Pillow

PARTS = ("train", "test")
LARGEST_SIDE = 4096
DIM = 64
"""The brightest of 256 levels below which images of 16 bits have lost too many: theirs may be of 12 bits."""
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
Named = list[tuple[str, Path]]
"""Pictures and the folders that say their classes."""


class ImageFolders(Source):
    """Folders of images: SITE/train/CLASS and SITE/test/CLASS, or SITE/CLASS, of which we split each class."""

    name: ClassVar[str] = "images"
    about: ClassVar[str] = "a folder for each site with train/CLASS and test/CLASS, or CLASS, of images"
    takes: ClassVar[frozenset[str]] = frozenset({"test_share", "split"})

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.is_dir() and not (path / "train").is_dir() and bool(_sites(path))

    @classmethod
    def serves(cls, path: Path) -> bool:
        return path.is_dir()

    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        found = {site.name: _pictures(site, reading, seed, site.name) for site in _sites(self.path)}
        fitted = fitted or Fitted(
            labels=_labels(name for parts in found.values() for pairs in parts.values() for name, _ in pairs)
        )
        grey, deep = one_kind([file for parts in found.values() for pairs in parts.values() for _, file in pairs])
        sites = [_site(parts, fitted, grey, name) for name, parts in found.items()]
        notes = tuple(dimmed(sites)) if deep else ()
        return Found(sites, fitted, task or f"classification:{len(fitted.labels)}", notes)

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        """Read one site's images; without agreed classes, each folder begins with the number of its class."""
        parts = _pictures(path, reading, seed, site)
        grey, _ = one_kind([file for pairs in parts.values() for _, file in pairs])
        return _site(parts, fitted, grey, None)


def _sites(path: Path) -> list[Path]:
    """The folders that hold images of classes, or parts of them."""
    return [
        each for each in _folders(path) if (each / "train").is_dir() or any(_images(home) for home in _folders(each))
    ]


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _images(home: Path) -> list[Path]:
    return sorted(file for file in home.iterdir() if file.suffix.lower() in _PICTURES)


def _pictures(site: Path, reading: Reading, seed: int, name: str) -> dict[str, Named]:
    """Find the pictures of each part of one site."""
    with sentences(site):
        if not (site / "train").is_dir():
            return _split(site, reading, seed, name)
        reading.insist(frozenset(), f"{site}, which is split into train and test")
        found = {}
        for part in PARTS:
            if not (site / part).is_dir():
                raise UserError(f"{site} has no folder {part}; images lie in train/CLASS and test/CLASS")
            found[part] = [(home.name, file) for home in _folders(site / part) for file in _images(home)]
            if not found[part]:
                raise UserError(f"{site / part} holds no images")
        return found


def _split(site: Path, reading: Reading, seed: int, name: str) -> dict[str, Named]:
    if reading.split not in (None, "stratified"):
        raise UserError(f"split = {reading.split!r} is for tables; images are split class by class (stratified)")
    classes = {home.name: _images(home) for home in _folders(site)}
    if not any(classes.values()):
        raise UserError(
            f"{site} holds no images; they lie in train/CLASS and test/CLASS, or in CLASS (of a table, name the file)"
        )
    if (count := sum(map(len, classes.values()))) < FEWEST:
        raise UserError(
            f"{site} has {count} images, too few to split: a site needs {FEWEST}, or folders train and test"
        )
    random = streams.frozen_generator(seed, "split", name)
    found: dict[str, Named] = {part: [] for part in PARTS}
    for home, files in classes.items():
        order = random.permutation(len(files))
        aside = min(max(round(reading.test_share * len(files)), 1), len(files) - 1)
        for part, chosen in (("test", order[:aside]), ("train", order[aside:])):
            found[part] += [(home, files[at]) for at in sorted(chosen)]
    return found


def _labels(names: Iterable[str]) -> tuple[str, ...]:
    """Name the classes: by the numbers that all folders begin with, or in the order of the alphabet."""
    distinct = sorted(set(names))
    if len(distinct) < 2:
        raise UserError(f"all images of all sites are in folders called {distinct[0]!r}: there are no two classes")
    numbers = [_number(name) for name in distinct]
    if any(number is None for number in numbers):
        return tuple(distinct)
    _insist_on_own_numbers(distinct)
    top = max(number for number in numbers if number is not None)
    if top >= 100_000:
        raise UserError(f"the folder {distinct[-1]} names the class {top}; classes are numbered 0, 1, 2, ...")
    called = dict(zip(numbers, distinct, strict=True))
    return tuple(called.get(number, str(number)) for number in range(top + 1))


def _insist_on_own_numbers(names: Iterable[str]) -> None:
    """Refuse folders of two names and one number: they would become one class."""
    called: dict[int | None, str] = {}
    for name in names:
        first = called.setdefault(_number(name), name)
        if first != name:
            raise UserError(
                f"the folders {first} and {name} begin with the same number, and the number is the class: give each "
                "class a number of its own, or call its folders alike"
            )


def _number(name: str) -> int | None:
    """The class that a folder's name begins with, such as 0 or 3-pneumonia."""
    match = re.match(r"\d+", name)
    return None if match is None else int(match.group())


def _site(parts: dict[str, Named], fitted: Fitted | None, grey: bool, name: str | None) -> Site:
    from PIL import Image  # an import that only folders of images pay for

    def pixels(file: Path) -> Array:
        with sentences(file), Image.open(file) as image:
            return as_bytes(image, grey)

    arrays = {}
    for part, pairs in parts.items():
        arrays[f"x_{part}"] = np.stack([pixels(file) for _, file in pairs])
        arrays[f"y_{part}"] = classes(pairs, fitted)
    return Site(**arrays, name=name)


def as_bytes(image: "Pillow.Image", grey: bool) -> Array:
    """Return an image's pixels with 8 bits each; of 16 bits, 65535 becomes 255, as in the `model.py` of an export."""
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value * (1 / 257) + 0.5)
    return np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)


def dimmed(sites: Iterable[Site]) -> Iterator[str]:
    """Say so where images of 16 bits use so few of their values that little is left of them in 8."""
    top = max(int(np.asarray(x).max()) for site in sites for x in (site.x_train, site.x_test))
    if top < DIM:
        yield (
            f"images of 16 bits are read with 8, of which 65535 becomes 255, and the brightest pixel becomes {top}: if "
            "their values end earlier, as those of 12 bits do, multiply those of all images by one factor first"
        )


def classes(pairs: Named, fitted: Fitted | None) -> Array:
    """The number of each picture's class, by the folder that it lies in."""
    names = [name for name, _ in pairs]
    if fitted is not None and set(names) <= set(fitted.labels):
        return fitted.numbers_of(names, "the images")
    numbers = [_number(name) for name in names]
    if None not in numbers:
        _insist_on_own_numbers(names)
        return np.array(numbers, dtype=np.int64)
    if fitted is None:
        odd = next(file for name, file in pairs if _number(name) is None)
        raise UserError(f"{odd.parent} does not begin with the number of its class, such as 0 or 3-pneumonia")
    return fitted.numbers_of(names, "the images")


def one_kind(files: list[Path]) -> tuple[bool, bool]:
    """Refuse images of different sizes; return whether all are grey, and whether any has 16 bits for a pixel."""
    with sentences(files[0].parent):
        grey, deep, size = _head(files[0])
        for file in files[1:]:
            also, deeper, other = _head(file)
            grey, deep = grey and also, deep or deeper
            if other != size:
                raise UserError(f"{file} is {other[0]}x{other[1]}, {files[0]} is {size[0]}x{size[1]}; scale them alike")
        affordable(len(files) * size[0] * size[1] * (1 if grey else 3))
    return grey, deep


def is_grey(image: "Pillow.Image", where: Path | str) -> bool:
    """Whether an image is grey; of more than 16 bits for a pixel nobody knows which value is white."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):  # a PNG of mode I has 16 bits
        raise UserError(
            f"{where} is grey with up to 32 bits for a pixel (mode {image.mode}), and nothing in it says which value "
            "is white: save it with 8 or 16 bits"
        )
    return image.mode in ("1", "L") or image.mode.startswith("I")


def _head(file: Path) -> tuple[bool, bool, tuple[int, int]]:
    """Look at the head of an image file: a small one can promise more pixels than there is memory."""
    from PIL import Image

    grey = deep = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the lower bound
            with Image.open(file) as image:
                width, height = image.size
                grey, deep = is_grey(image, file), image.mode.startswith("I")
    except Image.DecompressionBombError:
        width = height = LARGEST_SIDE + 1
    if width * height > LARGEST_SIDE**2:
        raise UserError(
            f"{file} has more pixels than the {LARGEST_SIDE}x{LARGEST_SIDE} that are allowed; scale it down"
        )
    return grey, deep, (width, height)
