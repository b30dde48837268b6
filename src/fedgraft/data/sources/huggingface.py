"""Datasets of the Hugging Face library, as `save_to_disk` writes them, with a column that names the site."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import sentences
from fedgraft.data.site import Site
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.frames import SET, find_target, pandas, target_words
from fedgraft.data.sources.images import as_bytes, dimmed, is_grey
from fedgraft.data.sources.source import Found, Reading, Source
from fedgraft.data.sources.splitting import PARTS, parts_of
from fedgraft.data.sources.tables import Table, by_site, prepared

_PART = {"train": "train", "test": "test", "validation": "val", "val": "val"}


class SavedDataset(Source):
    """A dataset of the library `datasets` on disk; its splits train, test and validation are kept."""

    name: ClassVar[str] = "datasets"
    about: ClassVar[str] = (
        "a folder that datasets.save_to_disk wrote, with a column that names the site (--site-column)"
    )
    takes: ClassVar[frozenset[str]] = Table.takes

    @classmethod
    def fits(cls, path: Path) -> bool:
        return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()

    def frames(self, reading: Reading) -> Mapping[str, Any]:
        return by_site(self._frame(), reading.site_column, self.path.name)

    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        tables = self.frames(reading)
        pictured = [name for name, values in next(iter(tables.values())).items() if _is_image(values)]
        if not pictured:
            return prepared(tables, reading, task, seed, fitted)
        return _images(tables, pictured[0], reading, seed, fitted)

    def _frame(self) -> Any:
        pd = pandas()
        try:
            import datasets
        except ImportError:
            raise UserError("this is read with the library datasets: pip install 'fedgraft[huggingface]'") from None
        with sentences(self.path):
            found = datasets.load_from_disk(str(self.path))
        if not isinstance(found, Mapping):
            return _named(found)
        if odd := [name for name in found if name not in _PART]:
            raise UserError(f"{self.path} has a split {odd[0]!r}; splits are called train, test and validation")
        whole = [_named(each).assign(**{SET: _PART[name]}) for name, each in found.items()]
        return whole[0].drop(columns=SET) if len(whole) == 1 else pd.concat(whole, ignore_index=True)


def _named(found: Any) -> Any:
    """Return a table with the names of classes instead of their numbers."""
    columns = {name: found[name][:] for name in found.column_names}
    for name, feature in found.features.items():
        if hasattr(feature, "int2str"):
            columns[name] = [None if value is None else feature.int2str(value) for value in columns[name]]
    return pandas().DataFrame(columns)


def _is_image(values: Any) -> bool:
    return hasattr(values.iloc[0], "convert")


def _images(
    tables: Mapping[str, Any], pictured: str, reading: Reading, seed: int, fitted: Fitted | None = None
) -> Found:
    """Images in one column, classes in another."""
    reading.insist(frozenset({"target", "site_column", "split", "test_share"}), "a dataset of images")
    target = {site: find_target(table.columns, reading.target, site) for site, table in tables.items()}
    words = {site: target_words(table[target[site]], site) for site, table in tables.items()}
    whole = all(kind == "whole" for kind, _ in words.values())
    distinct = {label for _, labels in words.values() for label in labels}
    labels = tuple(sorted(distinct, key=int if whole else None))
    fitted = fitted or Fitted(target=next(iter(target.values())), labels=labels)
    if len(fitted.labels) < 2:
        raise UserError(
            f"{fitted.target} is the same in every row of every site: there are no two classes to tell apart"
        )
    sites = []
    for site, table in tables.items():
        greys = [is_grey(image, f"an image of {site}") for image in table[pictured]]
        grey = all(greys)
        x = np.stack([as_bytes(image, grey) for image in table[pictured]])
        y = fitted.numbers_of(words[site][1], site)
        parts = parts_of(table, y, reading, site, seed)
        pairs = (("x", x), ("y", y))
        arrays = {f"{letter}_{p}": v[parts == p] for letter, v in pairs for p in PARTS if (parts == p).any()}
        sites.append(Site(**arrays, name=site))
    deep = any(image.mode.startswith("I") for table in tables.values() for image in table[pictured])
    return Found(sites, fitted, f"classification:{len(fitted.labels)}", tuple(dimmed(sites)) if deep else ())
