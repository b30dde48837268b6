"""Things of one's own by reference: found, found again, and found by a worker that starts from nothing."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgraft.base.errors import UserError
from fedgraft.base.reference import is_reference, reference, resolve

FILE = "import helper_of_mine\n\nclass Mine:\n    class Inner:\n        pass\n\ndef build():\n    return 1\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a user's own, and none of its modules afterwards."""
    (tmp_path / "my_methods.py").write_text(FILE)
    (tmp_path / "helper_of_mine.py").write_text("")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "nets.py").write_text("def net():\n    return 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_form() -> None:
    for text in ("./my.py:Mine", "my.py:Mine", "mynet:build", "a.b.c:D.E", "/x/y z/m.py:f", "..:x", "C:\\m.py:f"):
        assert is_reference(text), text
    for text in ("fedapa", "fedapa:mu=0.3", "mlp:200-100", "vgg16:0.25", "./my.py", ":x", "a:", "./my.py:Mine:b=1"):
        assert not is_reference(text), text


def test_a_file_a_module_and_a_package_of_the_current_folder(here: Path) -> None:
    mine = resolve("./my_methods.py:Mine", "method")
    assert isinstance(mine, type)
    assert mine.__name__ == "Mine"
    assert resolve("my_methods:Mine", "method") is mine, "one file is imported once"
    assert resolve(f"{here}/my_methods.py:Mine", "method") is mine
    assert resolve("my_methods.py:Mine.Inner", "method") is mine.Inner  # type: ignore[attr-defined]
    assert resolve("my_package.nets:net", "model")() == 2  # type: ignore[operator]
    assert resolve("my_package/nets.py:net", "model")() == 2  # type: ignore[operator]
    assert resolve("math:sqrt", "model")(4) == 2  # type: ignore[operator]


def test_what_was_found_is_found_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = resolve("./my_methods.py:Mine", "method")
    text = reference(mine)
    assert text == f"{here}/my_methods.py:Mine"
    monkeypatch.chdir("/")
    assert resolve(text, "method") is mine
    assert reference(mine.Inner) == f"{here}/my_methods.py:Mine.Inner"  # type: ignore[attr-defined]
    assert reference(Path) == f"{Path.__module__}:Path"

    class Inside:
        pass

    assert reference(Inside) is None
    assert reference(lambda: None) is None
    assert reference(3) is None
    twin = type("Mine", (), {"__module__": mine.__module__})  # type: ignore[attr-defined]
    assert reference(twin) is None, "another class has that name"


def test_two_files_of_one_name_and_one_that_is_called_like_a_module(here: Path) -> None:
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "same.py").write_text(f"def f():\n    return {folder!r}\n")
    (here / "random.py").write_text("def f():\n    return 'mine'\n")
    found = [resolve(f"{each}:f", "model") for each in ("one/same.py", "two/same.py", "./random.py")]
    assert [f() for f in found] == ["one", "two", "mine"]  # type: ignore[operator]
    import random

    assert hasattr(random, "Random")
    assert [pickle.loads(pickle.dumps(f)) is f for f in found] == [True] * 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("./none.py:Mine", r"there is no file .*/none\.py$"),
        ("./my_methods.py:Mne", r"\./my_methods\.py has no 'Mne'; did you mean 'Mine'\?$"),
        ("my_methods:Mine.Iner", r"my_methods has no 'Iner'; did you mean 'Inner'\?$"),
        ("no_such_module:f", r"there is no module 'no_such_module', here or installed$"),
        ("my_package.none:f", r"there is no module 'my_package.none', here or installed$"),
        ("..:x", r"'\.\.' is neither a module nor a Python file$"),
        ("../:x", r"there is no file"),
        ("./notes/x.txt:x", r"there is no file"),
        ("./broken.py:x", r"cannot be imported: ZeroDivisionError: division by zero$"),
        ("broken:x", r"cannot be imported: ZeroDivisionError: division by zero$"),
        ("./syntax.py:x", r"cannot be imported: SyntaxError"),
        ("./needy.py:x", r"cannot be imported: ModuleNotFoundError: No module named 'not_installed'$"),
        ("./leaving.py:x", r"cannot be imported: SystemExit: 3$"),
        ("fedapa:mu=0.3", r"is named as package\.module:Name or \./file\.py:Name"),
    ],
)
def test_a_mistake_is_one_sentence(here: Path, text: str, sentence: str) -> None:
    (here / "broken.py").write_text("x = 1 / 0\n")
    (here / "syntax.py").write_text("x = (\n")
    (here / "needy.py").write_text("import not_installed\n")
    (here / "leaving.py").write_text("raise SystemExit(3)\n")
    for _ in range(2):  # a module that failed once is not half there
        with pytest.raises(UserError, match=sentence) as caught:
            resolve(text, "method")
        assert "\n" not in str(caught.value)


SCRIPT = """
import multiprocessing
from fedgraft.base.reference import reference, resolve
print("begun", __name__)

class Own:
    pass

def tell(thing, queue):
    queue.put(thing.__name__)

if __name__ == "__main__":
    assert resolve(__file__ + ":Own", "method") is Own
    print(reference(Own))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=tell, args=(resolve("./my_methods.py:Mine", "method"), queue))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


def test_a_script_refers_to_itself_and_a_fresh_worker_finds_the_file(here: Path) -> None:
    (here / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=here, env=dict(os.environ), capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines.count("begun __main__") == 1, "the script is not run a second time in its own process"
    assert f"{here}/script.py:Own" in lines
    assert lines[-1] == "Mine"
