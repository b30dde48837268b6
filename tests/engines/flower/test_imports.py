"""Flower is an extra: the engine and deployment import it, and nobody who does without it pays for it."""

import re
import subprocess
import sys
from pathlib import Path

import fedgraft

SOURCE = Path(fedgraft.__file__).parent


def importing(pattern: str, folder: Path = SOURCE) -> set[str]:
    statement = re.compile(rf"^\s*(?:from|import) {pattern}\b", re.MULTILINE)
    return {
        str(file.parent.relative_to(SOURCE))
        for file in folder.rglob("*.py")
        if statement.search(file.read_text("utf-8"))
    }


def test_flower_is_imported_in_two_folders() -> None:
    assert importing("flwr") == {"deploy", "engines/flower"}


def test_engines_do_not_know_of_runs() -> None:
    assert importing(r"fedgraft\.(?:runs|report|cli|terminal|deploy)", SOURCE / "engines") == set()


def test_a_local_run_and_a_charter_do_without_flower() -> None:
    program = "import sys, fedgraft.runs.run, fedgraft.deploy.charter, fedgraft.cli; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_a_sites_half_imports_little() -> None:
    """Every message starts a process, and waits for its imports."""
    program = "import sys, fedgraft.deploy.serving; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["sklearn", "scipy", "pooch", "matplotlib", "jinja2", "PIL", "tensorboard", "mlflow"]
    done = subprocess.run(
        [sys.executable, "-c", program, *heavy], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
