"""Free memory goes back to the system."""

from pathlib import Path

import pytest

from fedgraft.base import memory

MODEL = 100_000


def resident() -> int:
    """Bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.skipif(memory._trim() is None or not Path("/proc/self/status").exists(), reason="needs Linux with glibc")
def test_holes_between_objects_that_stay_are_given_back() -> None:
    kept, models = [], []
    for _ in range(500):
        models.append(bytearray(MODEL))
        kept.append(bytes(2000))  # too large for Python's own pools
    before = resident()
    models.clear()
    memory.give_back()
    assert before - resident() > 0.8 * 500 * MODEL
    assert len(kept) == 500


def test_where_the_c_library_cannot_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", lambda: None)
    memory.give_back()
