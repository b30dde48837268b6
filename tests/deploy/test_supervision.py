"""`fedgraft deploy server` and `fedgraft deploy site` besides Flower: shown with programs that every system has."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.deploy import certificates, server, site
from fedgraft.deploy.journal import Journal, plain
from fedgraft.deploy.processes import Programs, free_port
from fedgraft.deploy.voice import loud

KIT = ["--sites", "a,b", "--method", "fedavg", "--pixels", "8x8", "--task", "classification:10"]


def deploy(*words: str | Path) -> str:
    return CliRunner().invoke(app, ["deploy", *map(str, words)], catch_exceptions=False).stdout


def eventually(programs: Programs, true: Callable[[], bool]) -> None:
    programs.wait_until(true, "it is true", seconds=20)


# ---- logs


def test_a_log_has_times_and_an_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "logs" / "one.log", limit=300)
    for number in range(20):
        journal.write(f"line {number}")
    newest, older = (tmp_path / "logs" / name for name in ("one.log", "one.log.1"))
    assert sorted(tmp_path.glob("logs/*")) == [newest, older]
    assert max(newest.stat().st_size, older.stat().st_size) <= 300
    lines = (older.read_text() + newest.read_text()).splitlines()
    assert [int(line.split()[-1]) for line in lines] == list(range(20 - len(lines), 20)), "the last ones, in order"
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d line ", lines[0])


def test_colours_and_control_characters_are_left_out() -> None:
    assert plain(b"\x1b[92mINFO \x1b[0m:      be\x07gin\x1b[2K\r\n") == "INFO :      begin"
    assert plain(b"\xff") == "\N{REPLACEMENT CHARACTER}"


def test_verbose_shows_what_every_program_says() -> None:
    said: list[str] = []
    heard: list[str] = []
    hear = loud(said.append, lambda name, line: heard.append(line))
    for line in ("INFO : begin", "", "fedgraft: round 1/2"):
        hear("superlink", line)
    assert said == ["[superlink] INFO : begin"], "what is for people is said anyway"
    assert heard == ["INFO : begin", "", "fedgraft: round 1/2"]


# ---- what dies


def test_what_dies_is_started_again_with_a_word_about_it(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"test -e {tmp_path}/once && sleep 300; touch {tmp_path}/once; echo 'ERROR: no memory'; exit 3"
    with Programs(tmp_path, say=said.append) as programs:
        one = programs.start("one", "sh", "-c", script, delays=(0.2, 0.2))
        first = one.pid
        eventually(programs, lambda: one.pid != first and one.code is None)
        time.sleep(0.3)
        programs.check()
    (sentence,) = said
    assert sentence.startswith("one ended with exit code 3 (ERROR: no memory); it is started again in 0.2 s")
    assert (tmp_path / "logs" / "one.log").read_text().count("of one begins") == 2


def test_what_dies_again_and_again_ends_everything(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        programs.start("one", "sh", "-c", "echo 'ERROR: no disk'; exit 3", delays=(0.1, 0.1))
        other = programs.start("other", "sleep", "300")
        with pytest.raises(UserError, match=r"(?s)one ended with exit code 3, 3 times in 10 minutes.*no disk"):
            eventually(programs, lambda: False)
    assert other.code is not None


# ---- what the two halves say


def test_a_sentence_of_the_server_half_is_passed_on_once_however_often_it_is_told() -> None:
    said: list[str] = []
    words = server.Words(said.append)
    for line in ("INFO : flower", "fedgraft: round 1/2", "fedgraft: round 2/2"):
        words.hear("serverapp", line)
    words.once_more()
    for line in ("fedgraft: round 1/2", "fedgraft: round 2/2", "fedgraft: done: 0 refusals"):
        words.hear("serverapp", line)
    words.hear("superlink", "fedgraft: not of a run")
    assert said == ["round 1/2", "round 2/2", "done: 0 refusals"]
    assert words.ending == "done: 0 refusals"
    words.of_another_run()
    assert words.ending == ""


def test_a_site_is_done_when_its_last_answer_has_left() -> None:
    said: list[str] = []
    words = site.Words(said.append)
    for line in ("INFO : SuperNode ID: 17", "fedgraft: round 1/1: trained", "INFO : Sent successfully"):
        words.hear("supernode", line)
    assert not words.over
    words.hear("supernode", "fedgraft: done: round 1/1")
    assert not words.over
    words.hear("supernode", "INFO : Sent successfully")
    assert words.over
    assert said[0].startswith("the server has let this site in")


# ---- what is missing is said before anything is started


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    deploy("init", tmp_path / "kit", *KIT, "--address", f"127.0.0.1:{free_port()}")
    return tmp_path / "kit"


def test_a_server_on_one_machine_needs_no_gate_and_any_other_has_one(kit: Path, tmp_path: Path) -> None:
    here = server.read(kit)
    assert (here.gate, f"127.0.0.1:{here.port}") == (False, here.address)
    deploy("init", tmp_path / "far", *KIT, "--address", "fed.example.org:8000")
    far = server.read(tmp_path / "far")
    assert (far.gate, far.address, far.port) == (True, "fed.example.org:8000", 8001)
    assert 'server = "fed.example.org:8000"' in (tmp_path / "far" / "sites" / "a.toml").read_text()


def test_a_server_says_what_it_lacks(kit: Path) -> None:
    with pytest.raises(
        UserError, match=r"there is no .*ca\.crt: `fedgraft deploy certificates .* --sites a,b` makes it"
    ):
        deploy("server", kit)
    certificates.make(kit / "certificates", server=["127.0.0.1"], sites=["a"])
    with pytest.raises(UserError, match=r"there is no key of site b: `fedgraft deploy certificates .* --sites b`"):
        deploy("server", kit)
    certificates.make(kit / "certificates", sites=["b"])
    (kit / "run").mkdir()
    (kit / "run" / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"is complete; for a new one, name another directory in charter\.toml"):
        deploy("server", kit)
    assert not (kit / "flower").exists()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('listen = "127.0.0.1', 'listen = "0.0.0.0', "listen is an address of this machine only"),
        ("gate = false", "gate = true", r"gate\.conf does not lead to 127\.0\.0\.1"),
        ("gate = false", "gates = false", "there is no setting 'gates'"),
        ("gate = false", 'gate = "no"', "gate is true or false"),
    ],
)
def test_a_wrong_description_of_a_server_is_a_sentence(kit: Path, old: str, new: str, complaint: str) -> None:
    certificates.make(kit / "certificates", server=["127.0.0.1"], sites=["a", "b"])
    path = kit / "server.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=complaint):
        deploy("server", kit)


def test_a_port_that_is_taken_is_named(kit: Path) -> None:
    import socket

    certificates.make(kit / "certificates", server=["127.0.0.1"], sites=["a", "b"])
    port = server.read(kit).port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(UserError, match=f"port {port} cannot be listened on .*is another server running"):
            deploy("server", kit)


def test_a_folder_without_a_server_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLWR_HOME", raising=False)
    with pytest.raises(UserError, match="is not the folder of a server that was started"):
        deploy("nodes", "--folder", tmp_path)


def test_a_site_that_names_no_server_is_told_so(kit: Path) -> None:
    path = kit / "sites" / "a.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "server =" not in line))
    with pytest.raises(UserError, match=r"a\.toml does not name the server"):
        deploy("check", path)


def test_what_programs_say_has_no_colours_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter asks every program for colours, and the answers of Flower's are read as JSON."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    with Programs(tmp_path) as programs:
        assert not {"FORCE_COLOR", "CLICOLOR_FORCE"} & set(programs.environment("anybody"))
