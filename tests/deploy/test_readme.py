"""The README that `fedgraft deploy init` writes, block by block as it stands: a server with its gate, three sites."""

import os
import re
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.data.datasets import load
from fedgraft.deploy.processes import Process, Programs, end, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.xdist_group("readme"),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="the server's gate needs nginx"),
]
PATIENCE = 600.0


def blocks(manual: str) -> list[str]:
    """The commands of a page, without the indentation that makes them code."""
    found = re.findall(r"(?:^    .*\n)+", manual, flags=re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def test_three_machines_from_nothing_to_a_personal_model(tmp_path: Path) -> None:
    """The server is stopped after its first round, and goes on; a site's node is killed, and comes back."""
    kit, inner = tmp_path / "kit", free_port()
    data = ["--pixels", "8x8", "--task", "classification:10"]
    words = ["init", str(kit), "--sites", "a,b,c", "--method", "fedapa", *data, "--quorum", "3"]
    words += ["--rounds", "2", "--address", f"127.0.0.1:{inner - 1}"]
    with Programs(tmp_path / "shell") as shell:

        def run(command: str, cwd: Path) -> str:
            script = ["bash", "-ec", f"cd {cwd}\n{command}"]
            done = subprocess.run(
                script, env=shell.environment("shell"), capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout

        def started(name: str, command: str, cwd: Path) -> Process:
            return shell.start(name, "bash", "-ec", f"cd {cwd}\n{command}", may_end=True)

        def wait_for(process: Process, words: str) -> None:
            shell.wait_until(lambda: words in process.said or process.code is not None, words, PATIENCE)
            assert words in process.said, process.said

        run(f"fedgraft deploy {' '.join(words)}", tmp_path)
        told = f'listen = "127.0.0.1:{inner}"'
        for old, new in (("gate = false", "gate = true"), (told.replace(f"{inner}", f"{inner - 1}"), told)):
            (kit / "server.toml").write_text((kit / "server.toml").read_text("utf-8").replace(old, new), "utf-8")
        commands = blocks((kit / "README.md").read_text("utf-8"))

        def block(text: str) -> str:
            (found,) = [each for each in commands if text in each]
            return found

        run(block("deploy certificates"), kit)
        server = started("server", block("deploy server"), kit)
        wait_for(server, "waiting for 3 of 3 sites: a, b, c")
        digits, sites = load("digits"), {}
        for number, site in enumerate("abc"):
            home = tmp_path / site
            shutil.copytree(kit / "certificates" / "sites" / site, home)
            shutil.copy2(kit / "sites" / f"{site}.toml", home)
            shutil.copy2(kit / "charter.toml", home)
            own = slice(400 * number, 400 * number + 300), slice(400 * number + 300, 400 * number + 400)
            train, test = ({"x": digits.x_train[part], "y": digits.y_train[part]} for part in own)
            np.savez(home / f"{site}.npz", x_train=train["x"], y_train=train["y"], x_test=test["x"], y_test=test["y"])
            sites[site] = started(f"site-{site}", block(f"deploy site {site}.toml"), home)
        wait_for(sites["a"], "what leaves: weights")
        other = f"mkdir other; sed s/{inner}/{inner - 1}/ flower/operator/config.toml > other/config.toml"
        asked = run(f"{other}\nexport FLWR_HOME=$PWD/other\n! flwr supernode list fedgraft 2>&1", kit)
        assert "403 Forbidden" in asked, "the gate lets nobody reach the Control API"
        assert run("fedgraft deploy nodes", kit).count("online") == 3
        wait_for(server, "round 1/2: loss")
        end([server], 60)
        assert server.code == 128 + signal.SIGTERM

        begins = re.compile(r"process (\d+) of supernode begins")
        found = begins.search((tmp_path / "b" / "logs" / "supernode.log").read_text("utf-8"))
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        again = started("server-again", block("deploy server"), kit)
        wait_for(again, "the run goes on after round 1")
        for process in (again, *sites.values()):
            shell.wait_until(
                partial(lambda each: each.code is not None, process), f"{process.name} has ended", PATIENCE
            )
            assert process.code == 0, process.said
        assert "supernode ended with exit code" in sites["b"].said
        assert "report.html" in again.said
        for site in "abc":
            model = Path(sites[site].said.partition("the site's own model: ")[2].splitlines()[0])
            assert model.is_relative_to(tmp_path / site / "state")
        assert "fedapa, round 2" in run(block("fedgraft deploy model a.toml"), tmp_path / "a")
