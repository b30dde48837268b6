"""Federations by nature: datasets whose clients are real hospitals, speakers, persons, patients and roles.

Each is prepared in a fixed way, the same for everybody: by round figures that are taken from nobody's data, and a split
that never changes. What is published is decoded once and kept as one .npz file for each site.
"""

import csv
import hashlib
import html
import io
import re
import wave
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.entries import Entry
from fedgraft.data.datasets.formats import MEMBER_LIMIT, Array, Arrays, affordable, files_in, sentences

Blobs = Mapping[str, bytes]
Sites = dict[str, Arrays]
SHARE = 0.25


@dataclass(frozen=True)
class Raw:
    """The published files of a natural federation, and how they become its sites."""

    files: tuple[str, ...]
    """What is fetched."""
    mirrors: tuple[str, ...]
    """URLs with ``{}`` where a file's name belongs."""
    pattern: str
    """Names of the files that matter, also inside an archive."""
    contents: str
    """SHA-256 of the list of these files' own SHA-256 and names, in the order of the names."""
    decode: Callable[[Blobs], Sites]

    def lying_in(self, folder: Path) -> list[Path]:
        """Return what somebody put into a folder: the files, or archives of them."""
        if not folder.is_dir():
            return []
        wanted = re.compile(rf"{self.pattern}|.*\.(zip|tar|tgz|tar\.gz)")
        return sorted(file for file in folder.iterdir() if wanted.fullmatch(file.name))

    def read(self, paths: list[Path], *, published: bool = False) -> Sites:
        """Decode files; ``published`` ones have to be those that we know."""
        where = paths[0] if len(paths) == 1 else paths[0].parent
        with sentences(where):
            blobs = dict(sorted(self._blobs(paths)))
            if published and listed(blobs) != self.contents:
                raise UserError(f"{where} does not hold the published data: its files have other checksums")
            return self.decode(blobs)

    def _blobs(self, paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
        wanted = re.compile(rf"(?:^|/)(?:{self.pattern}|[^/]*\.zip)$")
        for path in paths:
            for name, blob in files_in(path, wanted):
                yield from self._opened(PurePosixPath(name).name, blob)

    def _opened(self, name: str, blob: bytes) -> Iterator[tuple[str, bytes]]:
        """Open an archive that lies inside the archive."""
        if not name.endswith(".zip"):
            yield name, blob
            return
        with zipfile.ZipFile(io.BytesIO(blob)) as inner:
            for member in inner.infolist():
                own = PurePosixPath(member.filename).name
                if re.fullmatch(self.pattern, own):
                    affordable(member.file_size, MEMBER_LIMIT)
                    yield own, inner.read(member)


class Natural(Entry):
    """A dataset that brings its sites."""

    sites: ClassVar[int]
    raw: ClassVar[Raw]
    caution: ClassVar[str]
    """What to know before a method is judged by it."""


def listed(blobs: Blobs) -> str:
    """Return one checksum of many files."""
    lines = (f"{hashlib.sha256(blob).hexdigest()}  {name}\n" for name, blob in sorted(blobs.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _split(x: Array, y: Array, *seed: int) -> Arrays:
    """Put a quarter of every class aside for testing, at least one sample of it if there are two."""
    draw = np.random.default_rng(seed)
    chosen: list[int] = []
    for label in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == label))
        count = min(max(round(SHARE * len(rows)), 1), len(rows) - 1) if len(rows) > 1 else 0
        chosen += rows[:count].tolist()
    return _parted(x, y, np.isin(np.arange(len(y)), chosen))


def _parted(x: Array, y: Array, test: Array) -> Arrays:
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}


# ------------------------------------------------------------------------------------------------------- heart disease

_HEART = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "num",
)
_NUMBERS = {
    "age": (55, 10), "trestbps": (130, 20), "chol": (230, 50), "thalach": (140, 25), "oldpeak": (1, 1), "ca": (1, 1)
}  # fmt: skip
"""A usual value and a usual spread of adults in a heart ward."""
_KINDS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}


def _heart(blobs: Blobs) -> Sites:
    names = ("cleveland", "hungarian", "switzerland", "va")
    return {name: _hospital(blobs[f"processed.{name}.data"], number) for number, name in enumerate(names)}


def _hospital(blob: bytes, number: int) -> Arrays:
    rows = [row for row in csv.reader(io.StringIO(blob.decode())) if row and row[0] != "age"]
    cells = np.array([[np.nan if cell.strip() == "?" else float(cell) for cell in row] for row in rows])
    table = dict(zip(_HEART, cells.T.copy(), strict=True))
    for name in ("trestbps", "chol"):  # nobody alive has a blood pressure or a cholesterol of 0
        table[name][table[name] == 0] = np.nan
    y = (table["num"] > 0).astype(np.int64)
    split = _split(np.arange(len(y)), y, 0, number)
    columns: list[Array] = []
    for name, (usual, spread) in _NUMBERS.items():
        filled, missing = _filled(table[name], split["x_train"], usual)
        columns += [(filled - usual) / spread, missing]
    for name in ("sex", "fbs", "exang"):
        columns += _filled(table[name], split["x_train"], 0)
    for name, kinds in _KINDS.items():
        columns += [*(table[name] == kind for kind in kinds), np.isnan(table[name])]
    x = np.stack(columns, axis=1).astype(np.float32)
    return {key: x[rows] if key.startswith("x") else rows for key, rows in split.items()}


def _filled(column: Array, train: Array, usual: float) -> tuple[Array, Array]:
    """Give a missing value the median of the hospital's own training patients, and say where."""
    missing = np.isnan(column)
    known = column[train][~missing[train]]
    return np.where(missing, np.median(known) if len(known) else usual, column), missing


class HeartDisease(Natural):
    """Four hospitals, of which one has hardly a healthy patient and no cholesterol."""

    name = "heart-disease"
    shape = (35,)
    outputs = 2
    train, test, sites = 690, 230, 4
    source = "https://archive.ics.uci.edu/dataset/45"
    licence = "CC BY 4.0"
    citation = "A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, Heart Disease, UCI, 1989, doi:10.24432/C52P4X"
    megabytes = 1
    caution = "the gain of federation is about one point of accuracy here, and smaller than the noise of one split"
    raw = Raw(
        tuple(f"processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")),
        ("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/{}",),
        r"processed\.(cleveland|hungarian|switzerland|va)\.data",
        "431545e94743306027440ee27286c4bdb751b97c21f5f0f5ce8846efd3103cef",
        _heart,
    )


# ------------------------------------------------------------------------------------------------------- spoken digits

_SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
_RATE, _FRAME, _HOP, _SIDE = 8000, 512, 64, 8
_TRAIN, _KEPT = 3, 18
"""Recordings of each digit to train on, and in all: with more, nobody needs the others."""


def _spoken(blobs: Blobs) -> Sites:
    sites: Sites = {}
    for number, speaker in enumerate(_SPEAKERS):
        draw = np.random.default_rng([0, number])
        parts: dict[str, list[tuple[Array, int]]] = {"train": [], "test": []}
        for digit in range(10):
            order = draw.permutation(50)[:_KEPT]
            for part, chosen in (("test", order[: _KEPT - _TRAIN]), ("train", order[_KEPT - _TRAIN :])):
                parts[part] += [(_spectrum(blobs[f"{digit}_{speaker}_{take}.wav"]), digit) for take in sorted(chosen)]
        sites[speaker] = {}
        for part, pairs in parts.items():
            sites[speaker][f"x_{part}"] = np.stack([picture for picture, _ in pairs])
            sites[speaker][f"y_{part}"] = np.array([digit for _, digit in pairs], dtype=np.int64)
    return sites


def _spectrum(blob: bytes) -> Array:
    """Return a recording as a grey picture: low tones first, time to the right, 60 dB from black to white."""
    with wave.open(io.BytesIO(blob)) as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (_RATE, 1, 2):
            raise ValueError("a recording is not of 8 kHz, one channel, 16 bits")
        signal = np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2").astype(np.float64)
    signal = np.pad(signal, (0, max(0, _FRAME + _HOP * _SIDE - len(signal))))
    frames = np.lib.stride_tricks.sliding_window_view(signal, _FRAME)[::_HOP] * np.hanning(_FRAME)
    power = np.abs(np.fft.rfft(frames)) ** 2 @ _mel().T
    borders = np.linspace(0, len(power), _SIDE + 1).round().astype(int)
    power = np.stack([power[a:b].mean(axis=0) for a, b in pairwise(borders)], axis=1)
    loudness = 10 * np.log10(power + 1e-9)
    picture: Array = np.round(255 * np.clip(1 + (loudness - loudness.max()) / 60, 0, 1)).astype(np.uint8)
    return picture


def _mel() -> Array:
    """Triangles of equal width in the ear's scale of tones, from 100 Hz on."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (100, _RATE / 2))
    edges = 700 * (10 ** (np.linspace(low, high, _SIDE + 2) / 2595) - 1)
    tones = np.linspace(0, _RATE / 2, _FRAME // 2 + 1)
    rising = (tones[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - tones[None]) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling))


class SpokenDigits(Natural):
    """Six speakers with four accents, as small pictures of sound."""

    name = "spoken-digits"
    shape = (8, 8)
    outputs = 10
    train, test, sites = 180, 900, 6
    source = "https://github.com/Jakobovski/free-spoken-digit-dataset"
    licence = "CC BY-SA 4.0"
    citation = "Z. Jackson et al., Free Spoken Digit Dataset, Zenodo, 2018, doi:10.5281/zenodo.1342401"
    megabytes = 16
    caution = "the gain goes with scarcity: three recordings of a digit are for training; with ten it is gone"
    raw = Raw(
        ("26eb9aaf76e81b692f806f9140c2d2777410d7a1.zip",),
        ("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/{}",),
        r"\d_[a-z]+_\d+\.wav",
        "1801eae019c063377d98f831d3f93574f259475df7332bb0e3d1b080fb5e6959",
        _spoken,
    )


# --------------------------------------------------------------------------------------------------------------- WISDM

_ACTIVITIES = "ABCDEFGHIJKLMOPQRS"  # there is no N


def _wisdm(blobs: Blobs) -> Sites:
    return {f"person{name.split('_')[1]}": _person(blob, int(name.split("_")[1])) for name, blob in blobs.items()}


def _person(blob: bytes, number: int) -> Arrays:
    """Read the windows of ten seconds of one person, with the authors' own features."""
    head, _, body = blob.decode().partition("@data")
    names = re.findall(r'@attribute "(\w+)"', head)
    rows = [line.split(",") for line in body.split("\n") if line.strip()]
    if any(len(row) != len(names) for row in rows):
        raise ValueError(f"a line of person {number} has another number of columns")
    y = np.array([_ACTIVITIES.index(row[0]) for row in rows], dtype=np.int64)
    cells = [[np.nan if cell.strip() in ("?", "") else float(cell) for cell in row[1:-1]] for row in rows]
    x = np.clip(np.nan_to_num(np.array(cells) / [_unit(name) for name in names[1:-1]]), -5, 5)
    return _split(x.astype(np.float32), y, 0, number)


def _unit(feature: str) -> float:
    """m/s2 by ten, distances between peaks by fifty; the rest is of the order of one."""
    if feature.endswith("AVG") or feature == "RESULTANT":
        return 10
    return 50 if feature.endswith("PEAK") else 5 if feature.endswith("ABSOLDEV") else 1


class Wisdm(Natural):
    """Fifty persons and their telephones, in eighteen activities."""

    name = "wisdm"
    shape = (91,)
    outputs = 18
    train, test, sites = 17_524, 5_550, 50
    source = "https://archive.ics.uci.edu/dataset/507"
    licence = "CC BY 4.0"
    citation = (
        "G. Weiss, WISDM Smartphone and Smartwatch Activity and Biometrics Dataset, UCI, 2019, doi:10.24432/C5HK59"
    )
    megabytes = 300
    caution = "one model for all fails here, and few methods beat training alone (docs/results/board.md)"
    raw = Raw(
        ("wisdm+smartphone+and+smartwatch+activity+and+biometrics+dataset.zip",),
        ("https://archive.ics.uci.edu/static/public/507/{}",),
        r"data_16(?!14)\d\d_accel_phone\.arff",
        "acd5d30eaf3d97ecfea0029b5d4b8fd3b28b40a520938297309cba83e7f485b0",
        _wisdm,
    )


# ---------------------------------------------------------------------------------------------------------- Parkinson's


def _parkinsons(blobs: Blobs) -> Sites:
    """Days since the first recording and sixteen measures of the voice; whole days are for testing."""
    (blob,) = blobs.values()
    head, *rows = csv.reader(io.StringIO(blob.decode()))
    table = np.array([row for row in rows if row], dtype=np.float64)
    column = {name: number for number, name in enumerate(head)}
    wavering = [name for name in head if name.startswith(("Jitter", "Shimmer"))] + ["NHR"]
    sites: Sites = {}
    for patient in np.unique(table[:, 0]).astype(int):
        own = table[table[:, 0] == patient]
        day = own[:, column["test_time"]]
        x = [(day - 90) / 60]
        x += [(np.log(own[:, column[name]] + 1e-6) + 5) / 2 for name in wavering]
        x += [(own[:, column["HNR"]] - 20) / 5, *((own[:, column[n]] - 0.5) * 5 for n in ("RPDE", "DFA", "PPE"))]
        y = own[:, column["total_UPDRS"]].astype(np.float32)
        days = np.unique(np.floor(day))
        aside = np.random.default_rng([0, patient]).permutation(days)[: max(1, round(SHARE * len(days)))]
        sites[f"patient{patient:02}"] = _parted(
            np.stack(x, axis=1).astype(np.float32), y, np.isin(np.floor(day), aside)
        )
    return sites


class Parkinsons(Natural):
    """Forty-two patients at home, of whom a score of their illness is to be told from the voice."""

    name = "parkinsons"
    shape = (17,)
    outputs = 1
    task = "regression"
    train, test, sites = 4_395, 1_480, 42
    source = "https://archive.ics.uci.edu/dataset/189"
    licence = "CC BY 4.0"
    citation = "A. Tsanas, M. Little, Parkinsons Telemonitoring, UCI, 2009, doi:10.24432/C5ZS3N"
    megabytes = 1
    caution = (
        "the target was interpolated between three visits: a patient's own line over time predicts it well "
        "without any federation (mean absolute error 1.05)"
    )
    raw = Raw(
        ("parkinsons_updrs.data",),
        ("https://archive.ics.uci.edu/ml/machine-learning-databases/parkinsons/telemonitoring/{}",),
        r"parkinsons_updrs\.data",
        "8e0af89ff1aaf1ede84369da93aa98fa1d28fb8d3e9982b4cd0889deba00da39",
        _parkinsons,
    )


# --------------------------------------------------------------------------------------------------------- Shakespeare

_ALPHABET = "\n !',-.:;?abcdefghijklmnopqrstuvwxyz"
_ROLES, _LENGTH, _SAMPLES = 20, 20, 2000
_PLAYS = (
    *("a_and_c", "all_well", "as_you", "com_err", "coriolan", "cymbelin", "dream", "hamlet", "hen_iv_1", "hen_iv_2"),
    *("hen_v", "hen_vi_1", "hen_vi_2", "hen_vi_3", "hen_viii", "j_caesar", "john", "lear", "lll", "m_for_m", "m_wives"),
    *("macbeth", "merchant", "much_ado", "othello", "pericles", "r_and_j", "rich_ii", "rich_iii", "t_night", "taming"),
    *("tempest", "timon", "titus", "troilus", "two_gent", "win_tale"),
)


def _shakespeare(blobs: Blobs) -> Sites:
    """Take the longest roles; the last quarter of a role's words is for testing."""
    roles: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, blob in blobs.items():
        for speaker, words in _speeches(blob.decode(errors="replace")):
            roles[name.removesuffix(".xml"), speaker].append(words)
    texts = {role: "\n".join(words) for role, words in roles.items()}
    longest = sorted(texts, key=lambda role: -len(texts[role]))[:_ROLES]
    sites: Sites = {}
    for number, (play, role) in enumerate(longest):
        text, draw = texts[play, role], np.random.default_rng([0, number])
        border = 3 * len(text) // 4
        train, test = (
            _characters(text[:border], 3 * _SAMPLES // 4, draw),
            _characters(text[border:], _SAMPLES // 4, draw),
        )
        called = re.sub(r"\W+", "-", f"{play}-{role}".lower())
        sites[called] = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    return dict(sorted(sites.items()))


def _speeches(play: str) -> Iterator[tuple[str, str]]:
    for speech in re.findall(r"<SPEECH>(.*?)</SPEECH>", play, re.S):
        spoken = re.sub(r"<STAGEDIR>.*?</STAGEDIR>", "", speech, flags=re.S)
        lines = re.findall(r"<LINE>(.*?)</LINE>", spoken, re.S)
        words = "\n".join(re.sub(r"\s+", " ", html.unescape(line)).strip() for line in lines)
        for speaker in re.findall(r"<SPEAKER>(.*?)</SPEAKER>", speech, re.S):
            if speaker.strip():
                yield speaker.strip(), words


def _characters(text: str, count: int, draw: np.random.Generator) -> tuple[Array, Array]:
    """Draw places in a text: twenty characters before each, and the one there."""
    codes = np.array([_ALPHABET.find(character) if character in _ALPHABET else 1 for character in text.lower()])
    places = np.sort(draw.permutation(np.arange(_LENGTH, len(codes)))[:count])
    if not len(places):
        raise ValueError(f"a role has fewer than {_LENGTH} characters")
    before = np.stack([codes[place - _LENGTH : place] for place in places])
    return before.astype(np.int64), codes[places].astype(np.int64)


class Shakespeare(Natural):
    """Twenty roles of Shakespeare's, of which the next character is learned."""

    name = "shakespeare"
    task = "next-token"
    shape = (20,)
    outputs = 36
    train, test, sites = 30_000, 10_000, 20
    source = "https://www.ibiblio.org/xml/examples/shakespeare/"
    licence = "public domain text; J. Bosak's XML may be freely copied"
    citation = "W. Shakespeare, the plays, marked up by J. Bosak, 1999"
    megabytes = 8
    caution = "one common model wins here; it is not LEAF's dataset: another edition, alphabet and length"
    raw = Raw(
        tuple(f"{play}.xml" for play in _PLAYS),
        ("https://www.ibiblio.org/xml/examples/shakespeare/{}",),
        rf"({'|'.join(_PLAYS)})\.xml",
        "6569dbaedb00029b9de32a73f650ca8871cf260331855e20d51f0ab605bf86b4",
        _shakespeare,
    )
