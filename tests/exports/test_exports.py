"""A client's own model, out of a run and into a folder that needs no fedgraft; predictions on new files."""

import csv
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.data.federation import Federation
from fedgraft.data.sources.images import as_bytes
from fedgraft.exports import asking, package, standalone

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "progress": False, "model": "mlp:8"}
ALONE = """
import sys, csv
sys.modules["fedgraft"] = None  # whoever imports it fails
sys.path.insert(0, sys.argv[1])
from model import load
import torch
model = load(sys.argv[1])
samples = torch.load(sys.argv[2])
torch.save(model.answers(samples), sys.argv[3])
"""


def hospitals(folder: Path, *, regression: bool = False) -> Path:
    """Two hospitals with numbers, words, dates and missing cells."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name, shift in (("basel", 0.0), ("ulm", 1.0)):
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            out = csv.writer(stream)
            out.writerow(["age", "sex", "seen", "outcome"])
            for number in range(60):
                age = 40 + 10 * rng.standard_normal() + shift
                sex = "" if number % 7 == 0 else "fm"[number % 2]
                truth = age / 3 if regression else ("ill" if age > 40 else "well")
                out.writerow(["" if number % 9 == 0 else f"{age:.2f}", sex, f"2024-0{1 + number % 9}-11", truth])
    return folder


def by_itself(folder: Path, samples: torch.Tensor, tmp_path: Path) -> torch.Tensor:
    torch.save(samples, tmp_path / "samples.pt")
    subprocess.run(
        [sys.executable, "-c", ALONE, folder, tmp_path / "samples.pt", tmp_path / "answers.pt"], check=True, env={}
    )
    answers: torch.Tensor = torch.load(tmp_path / "answers.pt")
    return answers


@pytest.mark.parametrize("method", ["dbe", pytest.param("fedproto", marks=pytest.mark.slow)])
def test_an_exported_model_answers_without_fedgraft(method: str, tmp_path: Path) -> None:
    settings = {**QUICK, "model": "auto", "clients": 4}
    run = fg.run(method, dataset="digits", out=tmp_path / "run", **settings)
    package.write(package.subject(run, 2, "received"), tmp_path / "out")
    assert isinstance(run.federation, Federation)
    test = run.federation.clients[2].test
    with torch.no_grad():
        wanted = run.predictor(2, "received")(test.batch(slice(None))[0]).softmax(dim=1)
    assert torch.allclose(by_itself(tmp_path / "out", test.inputs, tmp_path), wanted, atol=1e-5)
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    assert facts["metrics"]["accuracy"] == run.records[-1]["received"]["metrics"]["accuracy"]["per_client"][2]
    np.savez(tmp_path / "new.npz", x=test.inputs.numpy(), y=test.labels.numpy())
    found = asking.evaluate(asking.model_of(tmp_path / "out", None, None), tmp_path / "new.npz")
    assert found["accuracy"] == pytest.approx(facts["metrics"]["accuracy"])
    assert found["log_loss"] == pytest.approx(facts["metrics"]["log_loss"], rel=1e-4)


@pytest.mark.slow
def test_from_tables_to_labelled_answers(tmp_path: Path) -> None:
    place = hospitals(tmp_path / "sites")
    fg.run("fedper", dataset=str(place), target="outcome", out=tmp_path / "run", **QUICK)
    told = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--client", "ulm", "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    rows = tmp_path / "rows.csv"
    rows.write_text("age,sex,seen\n71.5,m,2024-03-11\n,x,2024-12-31\n20,,2023-01-01\n")
    from_run = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(rows), "--client", "ulm"]).stdout
    from_export = CliRunner().invoke(app, ["predict", str(tmp_path / "out"), str(rows)]).stdout
    alone = subprocess.run(
        [sys.executable, tmp_path / "out" / "model.py", rows], check=True, capture_output=True, text=True
    ).stdout
    assert from_run.splitlines()[0] == "answer,ill,well"
    tables = [[row[1:] for row in csv.reader(text.splitlines()[1:])] for text in (from_run, from_export, alone)]
    figures = np.array(tables, dtype=float)
    assert np.allclose(figures, figures[1], atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# The model of ulm" in card
    assert "python model.py new.csv > answers.csv" in card


def test_values_come_in_their_own_unit(tmp_path: Path) -> None:
    place = hospitals(tmp_path / "sites", regression=True)
    run = fg.run("local", dataset=str(place), target="outcome", out=tmp_path / "run", **{**QUICK, "rounds": 20})
    model = package.whole(package.subject(run, "basel", "trained"))
    found = asking.evaluate(model, place / "basel.csv", ["rmse,r2"])
    header, *rows = csv.reader(asking.predict(model, place / "basel.csv").splitlines())
    truth = [float(row["outcome"]) for row in csv.DictReader((place / "basel.csv").open())]
    assert header == ["outcome"]
    error = np.array([float(row[0]) for row in rows]) - truth
    assert found["rmse"] == pytest.approx(float(np.sqrt(np.mean(error**2))), rel=1e-4)
    assert 5 < np.mean([float(row[0]) for row in rows]) < 25


def test_answers_go_into_a_folder_that_is_made_or_refused(tmp_path: Path) -> None:
    place = hospitals(tmp_path / "sites")
    fg.run("local", dataset=str(place), target="outcome", out=tmp_path / "run", **QUICK)
    words = ["predict", str(tmp_path / "run"), str(place / "ulm.csv"), "--client", "ulm", "--out"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "new" / "folder" / "a.csv")])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "new" / "folder" / "a.csv").read_text().startswith("answer,")
    refused = CliRunner().invoke(app, [*words, str(place / "ulm.csv" / "a.csv")])
    assert isinstance(refused.exception, UserError)
    assert "ulm.csv is not a folder" in str(refused.exception)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    place = hospitals(tmp_path / "sites")
    run = fg.run("local", dataset=str(place), target="outcome", out=tmp_path / "run", **QUICK)
    model = package.whole(package.subject(run, "ulm", "trained"))
    (tmp_path / "a.csv").write_text("age,sex\n71.5,m\n")
    with pytest.raises(UserError, match=r"no column of .*a.csv is called 'seen'"):
        asking.predict(model, tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("age,sex,seen\nold,m,2024-01-01\n")
    with pytest.raises(UserError, match=r"age in row 1 of .* is 'old', not a number"):
        asking.predict(model, tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("age,sex,seen\n1,m,2024-01-01\n")
    with pytest.raises(UserError, match=r"no column of .* is called 'outcome'"):
        asking.evaluate(model, tmp_path / "c.csv")
    (tmp_path / "c.csv").write_text("age,sex,seen\n71,5,m,2024-01-01\n")
    with pytest.raises(
        UserError, match=r"c\.csv has more cells in line 2 than the 3 columns that its first line names"
    ):
        asking.predict(model, tmp_path / "c.csv")
    with pytest.raises(
        ValueError, match=r"c\.csv has more cells in line 2 than the 3 columns that its first line names"
    ):
        model.read(tmp_path / "c.csv")
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(UserError, match=r"a sample in .*d.npz is 3 \(float32\), and the model takes 7"):
        asking.predict(model, tmp_path / "d.npz")
    with pytest.raises(UserError, match=r"there is nothing at .*e.png"):
        asking.predict(model, tmp_path / "e.png")
    (tmp_path / "e.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"this model takes rows of a .csv, .tsv or .parquet file, or an .npz file"):
        asking.predict(model, tmp_path / "e.png")
    for ask in (asking.predict, asking.evaluate):
        with pytest.raises(UserError, match=r"sites is a folder, and one file is wanted: rows of a .csv, .tsv or"):
            ask(model, place)
    with pytest.raises(UserError, match="say with --client whose model: basel, ulm"):
        asking.opened(tmp_path / "run", None)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="is there already; name another folder with --out"):
        package.write(package.subject(run, 0, "trained"), tmp_path / "out")
    (tmp_path / "out" / "model.json").write_text("{")
    with pytest.raises(UserError, match="does not hold what its name promises"):
        asking.model_of(tmp_path / "out", None, None)


def test_a_model_that_was_cut_short_is_one_sentence_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = fg.run("local", clients=2, partition="iid", **QUICK)
    package.write(package.subject(run, 0, "trained"), tmp_path / "m")
    file = tmp_path / "m" / "model.pt2"
    file.write_bytes(file.read_bytes()[:3000])
    logger = logging.getLogger("torch.export")
    logger.addHandler(caplog.handler)
    with pytest.raises(UserError, match="m is damaged or truncated"):
        asking.model_of(tmp_path / "m", None, None)
    logger.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.name == logger.name]
    assert not logger.disabled


@pytest.mark.slow
def test_onnx_computes_the_same(tmp_path: Path) -> None:
    import onnxruntime

    run = fg.run("fedavg", dataset="digits", clients=3, out=tmp_path / "run", **{**QUICK, "model": "auto"})
    package.write(package.subject(run, 0, "trained"), tmp_path / "out", onnx=True)
    assert isinstance(run.federation, Federation)
    samples = run.federation.clients[0].test.inputs[:7]
    given = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").run(["answers"], {"samples": samples.numpy()})
    assert np.allclose(given[0], standalone.load(tmp_path / "out").answers(samples).numpy(), atol=1e-4)


def pictures(place: Path, sites: tuple[str, ...], classes: tuple[str, ...], *, size: int = 4) -> Path:
    rng = np.random.default_rng(0)
    for site in sites:
        for at, name in enumerate(classes):
            (place / site / name).mkdir(parents=True)
            for number in range(12):
                shade = rng.integers(0, 90, (size, size)).astype(np.uint8) + np.uint8(120 * at)
                Image.fromarray(shade).save(place / site / name / f"{number:02}.png")
    return place


def test_image_files_go_in_and_labelled_answers_come_out(tmp_path: Path) -> None:
    place = pictures(tmp_path / "wards", ("basel", "ulm"), ("ill", "well"))
    run = fg.run("fedper", dataset=str(place), out=tmp_path / "run", **QUICK)
    model = package.whole(package.subject(run, "ulm", "trained"))
    files = sorted((place / "ulm").rglob("*.png"))
    header, *rows = csv.reader(asking.predict(model, place / "ulm").splitlines())
    assert header == ["file", "answer", "ill", "well"]
    assert [row[0] for row in rows] == list(map(str, files))
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(file)))[..., None] for file in files])
    test = run.federation.clients[1].test
    with torch.no_grad():
        wanted = run.predictor(1, "trained")(test.preparation.apply(pixels)).softmax(dim=1)
    assert np.allclose(np.array(rows)[:, 2:].astype(float), wanted.numpy(), atol=1e-5)
    one = asking.predict(model, files[3]).splitlines()
    assert len(one) == 2
    assert one[1].startswith(str(files[3]))
    right = np.mean([row[1] == Path(row[0]).parent.name for row in rows])
    assert asking.evaluate(model, place / "ulm")["accuracy"] == pytest.approx(right)
    pictures(tmp_path / "large", ("x",), ("ill",), size=6)
    with pytest.raises(UserError, match=r"00.png has 6x6 pixels, and the model takes 4x4: scale it"):
        asking.predict(model, tmp_path / "large")
    (place / "ulm" / "ill").rename(place / "ulm" / "odd")
    with pytest.raises(UserError, match=r"no class .* is called 'odd'"):
        asking.evaluate(model, place / "ulm")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="holds nothing that this model takes"):
        asking.predict(model, tmp_path / "nothing")


def test_an_exported_model_reads_16_bits_as_training_did(tmp_path: Path) -> None:
    place = pictures(tmp_path / "wards", ("basel", "ulm"), ("ill", "well"))
    run = fg.run("local", dataset=str(place), out=tmp_path / "run", **QUICK)
    model = package.whole(package.subject(run, "ulm", "trained"))
    file = tmp_path / "deep.png"
    Image.fromarray(np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)).save(file)
    with Image.open(file) as image:
        read = as_bytes(image, grey=True)
    assert read.flatten().tolist() == [round(value / 257) for value in range(0, 65536, 4096)]
    assert model.pixels(file)[..., 0].tolist() == read.tolist()
    assert asking.predict(model, file).count("\n") == 2
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "odd.tif")
    for ask in (model.pixels, lambda path: asking.predict(model, path)):
        with pytest.raises(
            (ValueError, UserError), match=r"odd\.tif is grey with up to 32 bits for a pixel \(mode F\)"
        ):
            ask(tmp_path / "odd.tif")


VERSE = "to be, or not to be that is the question\n" * 12


@pytest.mark.slow
def test_a_text_goes_in_and_the_next_character_comes_out_without_fedgraft(tmp_path: Path) -> None:
    (tmp_path / "roles").mkdir()
    for name in ("hamlet", "iago"):
        (tmp_path / "roles" / f"{name}.txt").write_text(VERSE)
    settings = {**QUICK, "model": "auto", "rounds": 10, "epochs": 5, "lr": 0.1, "window": 6, "batch_size": 8}
    run = fg.run("fedavg", dataset=str(tmp_path / "roles"), out=tmp_path / "run", **settings)
    package.write(package.subject(run, "iago", "trained"), tmp_path / "out", onnx=True)
    (tmp_path / "new.txt").write_text("that is the questio")
    told = asking.predict(asking.model_of(tmp_path / "out", None, None), tmp_path / "new.txt")
    header, row = csv.reader(told.splitlines())
    assert header[:5] == ["file", "answer", "newline", "space", ","]
    assert header[-1] == "other"
    assert row[1] == "n", "it was trained on nothing else"
    alone = [sys.executable, tmp_path / "out" / "model.py", tmp_path / "new.txt"]
    printed = subprocess.run(alone, check=True, capture_output=True, text=True, env={}).stdout
    here, there = (np.array([*csv.reader(text.splitlines())][1][2:], float) for text in (told, printed))
    assert np.allclose(here, there, atol=1e-5)
    found = asking.evaluate(package.whole(package.subject(run, "iago", "trained")), tmp_path / "roles" / "iago.txt")
    assert found["samples"] == (len(VERSE) - 1 - 6) // 3 + 1
    assert 1 <= (found["perplexity"] or 0) < 4
    (tmp_path / "new.txt").write_text("to be")
    short = subprocess.run(alone, capture_output=True, text=True, env={}, check=False)
    assert short.returncode == 1
    assert short.stderr.endswith("new.txt has 5 characters, and a sample is made of the last 6\n")


def test_windows_and_european_tables_without_fedgraft(tmp_path: Path) -> None:
    (tmp_path / "persons").mkdir()
    rng = np.random.default_rng(0)
    for name in ("ann", "bob"):
        rows = [f"{x:.3f};{y:.3f};{'run' if at // 20 % 2 else 'walk'}".replace(".", ",")
                for at, (x, y) in enumerate(rng.standard_normal((80, 2)))]  # fmt: skip
        (tmp_path / "persons" / f"{name}.csv").write_text("\n".join(["x;y;does", *rows]))
    run = fg.run("local", dataset=str(tmp_path / "persons"), target="does", window=8, out=tmp_path / "run", **QUICK)
    model = package.whole(package.subject(run, "bob", "trained"))
    rows_ = standalone.rows_of(tmp_path / "persons" / "bob.csv")
    samples = model.prepared(rows_)
    assert samples.shape == ((80 - 8) // 4 + 1, 8, 2)
    told = asking.predict(model, tmp_path / "persons" / "bob.csv")
    _, wanted = standalone.table(model.facts, model.answers(samples))
    assert [*csv.reader(told.splitlines())][1:] == wanted
    with pytest.raises(ValueError, match="there are 7 rows, and a sample is made of 8"):
        model.prepared(rows_[:7])
    with pytest.raises(ValueError, match="x is 'far', not a number"):
        model.prepared([{"x": "far", "y": "1"}] * 8)
