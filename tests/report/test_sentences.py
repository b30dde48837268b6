"""Whether joining pays, in a sentence for each client."""

from pathlib import Path

import pytest
from conftest import blobs
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.cli import app
from fedgraft.report.sentences import by_client


def test_a_sentence_for_each_client_with_an_interval() -> None:
    done = fg.compare(["ditto"], federation=lambda _: blobs(), model="linear", rounds=2, seeds=2, workers=1)
    head, *sentences = by_client(done)
    assert head.startswith("Does joining pay? ")
    assert head.endswith("against training alone, accuracy, mean of 2 seeds; 95 % interval of one seed's test")
    assert len(sentences) == done.clients
    best = done.verdicts()[0].label
    for client, sentence in enumerate(sentences):
        ours, alone = (sum(done.values(each, seed)[client] for seed in (0, 1)) / 2 for each in (best, "local"))
        assert sentence.startswith(f"{done.names(0)[client]}: {100 * ours:.1f} %, alone {100 * alone:.1f} %: ")
        assert sentence.endswith(("joining pays.", "too close to tell.", "better off alone."))


def test_the_command_ends_with_sentences_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "compare --dataset digits --clients 3 --partition blocks:train=20 --model linear --rounds 1 --seeds 1"
    shown = CliRunner().invoke(app, [*words.split(), "--workers", "1", "--by-client", "--report", "--out", "out"])
    assert shown.exit_code == 0, shown.exception
    lines = shown.stdout.strip().splitlines()
    assert lines[-1] == f"report: {Path('out/report.html')}"
    assert sum(line.startswith("client ") for line in lines) == 3
