"""What Python shows of runs, comparisons and federations: short texts, tables, progress where somebody looks on."""

import io
import sys

import pytest
from conftest import blobs, small_network
from rich.console import Console

import fedgraft as fg
from fedgraft import terminal

QUICK = {"rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8}


@pytest.fixture(scope="module")
def compared() -> fg.Comparison[fg.Run]:
    fed = blobs((200, 300, 100, 80))
    return fg.compare(["ditto"], seeds=1, federation=lambda seed: fed, model=small_network(), **QUICK)


def test_representations_are_short(compared: fg.Comparison[fg.Run]) -> None:
    fed = blobs((200, 300, 100, 80))
    assert repr(fed) == "Federation(blobs, own, seed 0: 4 clients, 680 training samples, 3 classes)"
    assert repr(compared) == "Comparison(local, fedavg, ditto on blobs, 4 clients, own, 2 rounds, 1 seed)"
    run = compared.runs["ditto"][0]
    assert repr(run).startswith(
        "Run(ditto on blobs, 4 clients, own, 2 rounds, seed 0: client mean of accuracy received "
    )
    assert len(repr(run)) < 130
    assert len(repr(compared.rows())) < 400


def test_printing_shows_the_tables(compared: fg.Comparison[fg.Run]) -> None:
    shown = str(compared)
    assert "Differences as trained" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "client mean" in str(compared.runs["ditto"][0])


def test_notebooks_show_tables_in_which_names_are_text() -> None:
    evil = "<img src=x onerror=alert(1)>[/bold]"
    fed = blobs()
    named = type(fed)(evil, fed.clients, fed.task, fed.partition, fed.seed)
    run = fg.run("local", named, model=small_network(), **QUICK)
    for shown in (run._repr_html_(), named._repr_html_()):
        assert "<img" not in shown
        assert "&lt;img src=x" in shown
        assert "[/bold]" in shown
    both = fg.compare([], seeds=1, federation=lambda seed: named, model=small_network(), **QUICK)
    assert "<img" not in both._repr_html_()
    assert "fedavg" in both._repr_html_()


def test_a_run_that_is_not_finished_says_so() -> None:
    seen = []

    class Watcher:
        def begin(self, run: fg.Run) -> None:
            seen.extend([repr(run), str(run), run._repr_html_()])

        def round(self, run: fg.Run, this: object) -> None: ...

        def end(self, run: fg.Run) -> None: ...

    fg.run("local", blobs(), model=small_network(), watchers=[Watcher()], **QUICK)
    assert all("not finished" in each for each in seen)
    assert len(seen) == 3


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_progress_and_table_are_shown_where_somebody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = blobs()
    for stream, told, expected in ((io.StringIO(), None, False), (Terminal(), None, True), (Terminal(), False, False)):
        for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "stderr", stream)
        fg.run("fedavg", fed, model=small_network(), progress=told, **QUICK)
        shown = stream.getvalue()
        assert ("client mean" in shown) == expected, "the table"
        assert ("2/2" in shown) == expected, "the progress"
        stream.truncate(0)
        fg.compare([], seeds=1, federation=lambda seed: fed, model=small_network(), progress=told, **QUICK)
        assert ("Differences as trained" in stream.getvalue()) == expected


def test_progress_leads_with_the_mean_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    run = fg.run("fedavg", blobs((20, 13, 31, 9)), model=small_network(), progress=True, **QUICK)
    last = next(line for line in stream.getvalue().splitlines() if "round 2/2" in line)
    for point in ("received", "trained"):
        assert f"{point} {100 * run.records[-1][point]['metrics']['accuracy']['mean']:.1f} %" in last


def test_a_clients_error_with_square_brackets_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(fg.FedAvg):
        """One client always fails."""

        name = "failing"

        def fit(self, client, received):  # type: ignore[no-untyped-def]
            if client.id == 1:
                raise ValueError("expected [/16, 3] not [bold]")
            return super().fit(client, received)

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "200")
    fed = blobs()
    object.__setattr__(fed, "names", tuple(f"clinic [/{letter}]" for letter in "abcd"))
    fg.run(Failing(), fed, model=small_network(), failed_client="absent", retries=0, progress=True, **QUICK)
    assert "clinic [/b]" in stream.getvalue()
    assert "expected [/16, 3] not [bold]" in stream.getvalue()


def test_notes_with_square_brackets_are_text() -> None:
    stream = Terminal()
    run = fg.run("fedavg", blobs(), model=small_network(), **QUICK)
    run.notes.append("the checkpoint in runs/[/x] is damaged")
    display = terminal.Display(Console(file=stream, width=120))
    display.begin(run)
    assert "runs/[/x] is damaged" in stream.getvalue()
    display.begin(run)
    assert stream.getvalue().count("is damaged") == 1, "what was said of one run is not said of the next"
