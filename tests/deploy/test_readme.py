"""The README that `fedgraft deploy init` writes, block by block as it stands: a server with its gate, three sites."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.data.datasets import load
from fedgraft.deploy.processes import Deployment, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="the server's gate needs nginx"),
]
PATIENCE = 600.0


def blocks(manual: str) -> list[str]:
    """The commands of a page, without the indentation that makes them code."""
    found = re.findall(r"(?:^    .*\n)+", manual, flags=re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def test_three_machines_from_nothing_to_a_personal_model(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    inner = free_port()
    data = ["--pixels", "8x8", "--task", "classification:10"]
    words = ["init", str(kit), "--sites", "a,b,c", "--method", "fedapa", *data]
    words += ["--rounds", "2", "--evaluate-every", "2", "--address", f"127.0.0.1:{inner - 1}"]
    with Deployment(tmp_path / "shell") as shell:  # only for its way to start programs, and to end them

        def run(command: str, cwd: Path) -> str:
            environment = shell._environment("shell")
            script = ["bash", "-ec", f"cd {cwd}\n{command}"]
            done = subprocess.run(
                script, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout

        def started(name: str, command: str, cwd: Path) -> None:
            shell.start(name, "bash", "-ec", f"cd {cwd}\n{command}")

        run(f"fedgraft deploy {' '.join(words)}", tmp_path)
        commands = blocks((kit / "README.md").read_text("utf-8"))

        def block(text: str) -> str:
            (found,) = [each for each in commands if text in each]
            return found

        quiet = block("export FLWR_TELEMETRY_ENABLED=0")
        run(block("deploy certificates"), kit)
        started("superlink", quiet + block("flower-superlink --host"), kit)
        started("superexec", quiet + block("flower-superexec --runtime"), kit)
        started("gate", block("nginx -p"), kit)
        superlink = shell.processes[0]
        shell.wait_until(lambda: "Application startup complete" in superlink.said, "the SuperLink is there", PATIENCE)
        operator = quiet + block("fedgraft deploy register")
        run(operator, kit)

        digits = load("digits")
        for number, site in enumerate("abc"):
            home = tmp_path / site
            shutil.copytree(kit / "certificates" / "sites" / site, home)
            shutil.copy2(kit / "sites" / f"{site}.toml", home)
            own = slice(400 * number, 400 * number + 300), slice(400 * number + 300, 400 * number + 400)
            train, test = ({"x": digits.x_train[part], "y": digits.y_train[part]} for part in own)
            np.savez(home / f"{site}.npz", x_train=train["x"], y_train=train["y"], x_test=test["x"], y_test=test["y"])
            started(f"site-{site}", quiet + block(f'{site}.toml\\""').replace("9094", str(free_port())), home)

        mine = quiet + 'export FLWR_HOME="$PWD/flower/operator"\n'
        run(mine + "flwr run . fedgraft", kit)
        shell.wait_until((kit / "run" / "result.json").exists, "the run is over", PATIENCE)
        assert "report.html" in run("fedgraft report run", kit)
        assert "fedapa, round 2" in run(block("fedgraft deploy model"), tmp_path / "a")

        refused = (
            mine + f"sed -i s/{inner}/{inner - 1}/ flower/operator/config.toml\n! flwr supernode list fedgraft 2>&1"
        )
        assert "403 Forbidden" in run(refused, kit), "the gate lets nobody reach the Control API"
