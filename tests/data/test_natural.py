"""Federations by nature: decoded from tiny files in the published formats, and from the real ones where they are."""

import hashlib
import io
import os
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.data.datasets import catalogue, lies_at_sites, load, natural, sites_of
from fedgraft.data.federation import federate

ALL = ("heart-disease", "parkinsons", "shakespeare", "spoken-digits", "wisdm")


def heart(folder: Path, rows: int = 24) -> None:
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = [
            f"{40 + n},1,{n % 4 + 1},{0 if n % 5 else 140},?,0,0,150,0,{n / 10},2,?,3,{n % 3}" for n in range(rows)
        ]
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


def parkinsons(folder: Path) -> None:
    shimmers = [f"Shimmer{n}" for n in range(6)]
    head = ["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *(f"Jitter{n}" for n in range(5))]
    head += [*shimmers, "NHR", "HNR", "RPDE", "DFA", "PPE"]
    lines = [",".join(head)]
    for patient in (1, 2):
        rows = [[patient, 70, 0, n * 1.5, 20 + n / 7, 30 + n / 3, *[0.01] * 12, 21, 0.5, 0.6, 0.2] for n in range(24)]
        lines += [",".join(map(str, row)) for row in rows]
    (folder / "parkinsons_updrs.data").write_text("\n".join(lines))


def shakespeare(folder: Path) -> None:
    speech = "<SPEECH><SPEAKER>{}</SPEAKER><LINE>To be, or <STAGEDIR>Aside</STAGEDIR>not to be{}</LINE></SPEECH>"
    text = "".join(speech.format("HAMLET", n) + speech.format("OPHELIA", "!" * n) for n in range(30))
    (folder / "hamlet.xml").write_text(f"<PLAY>{text}</PLAY>")


def sound(seed: int) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(np.random.default_rng(seed).integers(-3000, 3000, 1500).astype("<i2").tobytes())
    return stream.getvalue()


def spoken(folder: Path) -> None:
    """As GitHub packs them."""
    with zipfile.ZipFile(folder / "fsdd.zip", "w") as archive:
        for digit in range(10):
            for speaker in ("george", "jackson", "lucas", "nicolas", "theo", "yweweler"):
                for take in range(50):
                    archive.writestr(f"fsdd-26eb/recordings/{digit}_{speaker}_{take}.wav", sound(digit))
        archive.writestr("fsdd-26eb/README.md", "no sound")


def wisdm(folder: Path) -> None:
    """As UCI packs them: an archive in an archive."""
    names = ["ACTIVITY", "X0", "XAVG", "XPEAK", "XABSOLDEV", "class"]
    head = "\n".join(f'@attribute "{name}" numeric' for name in names)
    rows = "\n".join(f"{'ABC'[n % 3]},{n},{n / 10},?,{n},1600" for n in range(24))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for person in (1600, 1601, 1614):
            archive.writestr(f"wisdm/arff/data_{person}_accel_phone.arff", f"@relation x\n{head}\n@data\n{rows}\n")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("wisdm-dataset.zip", inner.getvalue())


WRITERS = {
    "heart-disease": heart,
    "parkinsons": parkinsons,
    "shakespeare": shakespeare,
    "spoken-digits": spoken,
    "wisdm": wisdm,
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("fedgraft.data.datasets._cache", lambda: tmp_path / "cache")
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDGRAFT_DATA", str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "sites", "shape"),
    [
        ("heart-disease", ("cleveland", "hungarian", "switzerland", "va"), (35,)),
        ("parkinsons", ("patient01", "patient02"), (17,)),
        ("shakespeare", ("hamlet-hamlet", "hamlet-ophelia"), (20,)),
        ("spoken-digits", ("george", "jackson", "lucas", "nicolas", "theo", "yweweler"), (1, 8, 8)),
        ("wisdm", ("person1600", "person1601"), (4,)),
    ],
)
def test_published_files_in_the_data_directory_become_sites(
    data: Path, name: str, sites: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    (data / name).mkdir()
    WRITERS[name](data / name)
    assert lies_at_sites(name)
    assert next(each for each in catalogue() if each.name == name).available
    fed = federate(name)
    assert fed.names == sites
    assert fed.input_shape == shape
    assert fed.task.name == natural.__dict__[fed.name.title().replace("-", "")].task
    assert all(len(client.train) and len(client.test) for client in fed.clients)
    assert fed.notes[0].startswith(f"{name}: ")
    assert sorted(file.stem for file in (data / name).glob("*.npz")) == sorted(sites), "decoded once, and kept"
    assert federate(name).fingerprints == fed.fingerprints


def test_what_is_missing_at_a_hospital_is_said_in_a_column(data: Path) -> None:
    (data / "heart-disease").mkdir()
    heart(data / "heart-disease")
    x = federate("heart-disease").clients[0].train.inputs.numpy()
    assert (x[:, 5] == 1).all(), "nobody's cholesterol is known"
    assert set(x[:, 3]) == {0.0, 1.0}, "a blood pressure of 0 is none"


def test_days_of_a_patient_are_on_one_side(data: Path) -> None:
    (data / "parkinsons").mkdir()
    parkinsons(data / "parkinsons")
    client = federate("parkinsons").clients[0]
    days = [set(np.floor(part.inputs[:, 0].numpy() * 60 + 90 + 1e-3)) for part in (client.train, client.test)]
    assert not days[0] & days[1]


def test_settings_that_say_nothing_here_are_refused(data: Path) -> None:
    (data / "heart-disease").mkdir()
    heart(data / "heart-disease")
    with pytest.raises(UserError, match="target = 'num' is of no effect on heart-disease, which is prepared already"):
        federate("heart-disease", target="num")
    with pytest.raises(UserError, match="there cannot be 5 clients"):
        federate("heart-disease", clients=5)
    with pytest.raises(UserError, match="lies at its sites and is no single dataset"):
        load("heart-disease")
    done = fg.run("local", dataset="heart-disease", rounds=1, workers=1)
    assert (done.config.partition, done.config.clients) == ("own", 4)


def test_without_a_network_it_is_said_what_to_put_where(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgraft.data.datasets import fetch

    def unreachable(*_: object, **__: object) -> list[Path]:
        raise fetch.UnreachableError("archive.ics.uci.edu does not answer")

    monkeypatch.setattr(fetch, "official", unreachable)
    with pytest.raises(UserError, match=r"does not answer.*put parkinsons_updrs\.data from .*189 into .*parkinsons"):
        sites_of("parkinsons")
    with pytest.raises(UserError, match="downloading is off"):
        sites_of("parkinsons", download=False)
    assert not list(data.iterdir())


def test_files_that_were_fetched_have_to_be_the_published_ones(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgraft.data.datasets import fetch

    def fetched(files: dict[str, Any], mirror: str, room: Path, *, progress: bool) -> list[Path]:
        assert mirror.startswith("https://")
        heart(room)
        return [room / file for file in files]

    monkeypatch.setattr(fetch, "official", fetched)
    with pytest.raises(UserError, match="does not hold the published data: its files have other checksums"):
        sites_of("heart-disease")
    heart(data)
    blobs = {file.name: file.read_bytes() for file in data.glob("processed.*")}
    kept = natural.listed(blobs)
    lines = [f"{hashlib.sha256(blobs[name]).hexdigest()}  {name}\n" for name in sorted(blobs)]
    assert kept == hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.real_data
@pytest.mark.parametrize("name", ALL)
def test_the_real_ones_are_what_the_catalogue_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ.get("FEDGRAFT_NATURAL") or os.environ.get("FEDGRAFT_DATA") or "nowhere")
    if not (home / name).is_dir():
        pytest.skip(f"neither FEDGRAFT_NATURAL nor FEDGRAFT_DATA holds {name}")
    fed = federate(name, data_dir=home)
    entry = next(each for each in catalogue(home) if each.name == name)
    assert (len(fed), sum(fed.samples), sum(len(c.test) for c in fed.clients)) == (entry.sites, entry.train, entry.test)
    assert fed.clients[0].train.inputs.shape[1:] == (*entry.shape, *([1] if len(entry.shape) == 2 else []))
    assert fed.task.outputs == entry.outputs
