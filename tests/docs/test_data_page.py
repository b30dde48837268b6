"""The Python on the page about data runs as it is printed, from its first block to its last."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("datasets", reason="the extra fedgraft[huggingface] is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


class Words:
    """A tokenizer as the page supposes one."""

    vocab_size = 30

    def encode(self, text: str) -> list[int]:
        return [ord(character) % self.vocab_size for character in text]


def hospitals(folder: Path) -> None:
    """What the page says lies at the hospitals, and little of it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("cleveland", "va"):
        columns: dict[str, Any] = {"age": rng.integers(30, 80, 40), "chest_pain": rng.integers(1, 5, 40)}
        columns |= {"patient": np.arange(40) // 4, "visit": pd.date_range("2024-01-01", periods=40)}
        pd.DataFrame(columns | {"disease": ["ill", "healthy"] * 20}).to_csv(folder / f"{name}.csv", index=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    texts = {"hamlet": "to be, or not to be " * 20, "iago": "I am not what I am " * 20}
    names: dict[str, Any] = {"my_tokenizer": Words(), **texts}
    federations = []
    for block in blocks:
        code = block.replace("rounds=30", "rounds=1, workers=1")
        exec(compile(code, str(PAGE), "exec"), names)
        federations.append(names["fed"])
    assert federations[1].names == ("north", "south")
    assert [len(client.validation) for client in federations[1].clients] == [10, 0]
    assert federations[2].names == ("jena", "ulm")
    last = federations[3].clients[0]
    assert (len(last.train), len(last.test)) == (28, 12)
    assert federations[5].names == ("hamlet", "iago")
    assert (tmp_path / "runs" / "hospitals" / "preparation.json").exists()
