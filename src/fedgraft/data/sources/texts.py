"""Texts: one .txt file for each site, of which the next character is learned."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array, affordable, sentences
from fedgraft.data.site import Site
from fedgraft.data.sources import windows
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.source import Found, Reading, Source, stems

WINDOW = 20
OFTEN = 3
"""Sites tell the characters that they have at least so many times in their training part."""
TXT = frozenset({".txt"})
Tokenizer = Callable[[str], Sequence[int]]


class TextFolder(Source):
    """A folder with one text for each site: a sample is a window of characters, its target the next one."""

    name: ClassVar[str] = "texts"
    about: ClassVar[str] = "a folder with one .txt file for each site"
    takes: ClassVar[frozenset[str]] = frozenset({"window", "test_share"})

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.is_dir() and bool(stems(path, TXT))

    @classmethod
    def serves(cls, path: Path) -> bool:
        return path.suffix.lower() == ".txt"

    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        return of_texts({file.stem: _text(file) for file in stems(self.path, TXT)}, reading, task, fitted=fitted)

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        if fitted is None or not fitted.characters:
            raise UserError(
                f"{path.name} is a text: the federation has to agree on its characters first (docs/data.md)"
            )
        return _site(_text(path), _codes(fitted.characters), fitted.window or WINDOW, reading, path.stem)


def of_texts(
    texts: Mapping[str, str],
    reading: Reading | None = None,
    task: str | None = None,
    tokenizer: Tokenizer | None = None,
    fitted: Fitted | None = None,
) -> Found:
    """Make sites of texts; ``tokenizer`` turns a text into whole numbers, unless its characters are the tokens."""
    reading = reading or Reading()
    window = reading.window or WINDOW
    if tokenizer is not None:
        sites = [_site(text, tokenizer, window, reading, site) for site, text in texts.items()]
        return Found(sites, Fitted(window=window), task or "next-token")
    told = {site: _announced(text[: _border(len(text), reading)]) for site, text in texts.items()}
    characters = fitted.characters if fitted else "".join(sorted(set().union(*told.values())))
    fitted = Fitted(characters=characters, window=window)
    sites = [_site(text, _codes(characters), window, reading, site) for site, text in texts.items()]
    return Found(sites, fitted, task or f"next-token:{len(characters) + 1}")


def _text(path: Path) -> str:
    with sentences(path):
        affordable(path.stat().st_size)
        try:
            return path.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a text in UTF-8") from None


def _announced(text: str) -> set[str]:
    return {character for character in set(text) if text.count(character) >= OFTEN}


def _border(length: int, reading: Reading) -> int:
    """Where the training part ends: the last part of a text is for testing."""
    return length - round(reading.test_share * length)


def _codes(characters: str) -> Tokenizer:
    code = {character: number for number, character in enumerate(characters)}
    return lambda text: [code.get(character, len(code)) for character in text]


def samples_of(text: str, fitted: Fitted, where: str) -> tuple[Array, Array]:
    """Windows of a text and the character behind each, as the federation's preparation has them."""
    return _windows(text, _codes(fitted.characters), fitted.window or WINDOW, f"the text of {where} is too short for")


def _windows(text: str, tokenizer: Tokenizer, window: int, complaint: str) -> tuple[Array, Array]:
    tokens = np.asarray(tokenizer(text), dtype=np.int64)
    begins = windows.starts(len(tokens) - 1, window)
    if not len(begins):
        raise UserError(f"{complaint} windows of {window}: choose a shorter --window")
    x = np.stack([tokens[at : at + window] for at in begins])
    return x, np.array([tokens[at + window] for at in begins], dtype=np.int64)


def _site(text: str, tokenizer: Tokenizer, window: int, reading: Reading, site: str) -> Site:
    border = _border(len(text), reading)
    arrays: dict[str, Array] = {}
    for part, piece in (("train", text[:border]), ("test", text[border:])):
        complaint = f"the text of {site} is too short to {part} on"
        arrays[f"x_{part}"], arrays[f"y_{part}"] = _windows(piece, tokenizer, window, complaint)
    return Site(**arrays, name=site)
