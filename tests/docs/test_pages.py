"""Pages made ready for the site: links, lists, docstrings; small pieces by hand."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

pytest.importorskip("jupytext", reason="the extra fedgraft[docs] is not installed")

import griffe

import fedgraft
from website import methods, pages, reference, tutorials
from website.describing import ANYWHERE, ATTRIBUTES, Describe, undescribed


def test_links_lead_to_the_places_of_the_site() -> None:
    known = {"SECURITY.md": "project/security.md", "docs/results/README.md": "results/index.md"}
    text = "[a](../SECURITY.md#b) [c](results) [d](https://e.org) [f](#g) [setup](../setup.py)"
    made = "[a](project/security.md#b) [c](results/index.md) [d](https://e.org) [f](#g) setup"
    assert pages.relink(text, "docs/page.md", "page.md", known) == made
    code = "```\n[a](../SECURITY.md)\n```"
    assert pages.relink(code, "docs/page.md", "page.md", known) == code


def test_links_to_what_pages_are_made_of_hold_in_the_checkout_and_on_the_site() -> None:
    links = "[a](tutorials/4-own-method.py) [b](../src/fedgraft/methods) [c](../src/fedgraft/methods/fedavg_ft.py)"
    place = "[a](tutorials/own-method.md) [b](reference/methods/index.md) [c](reference/methods/fedavg-ft.md)"
    assert pages.relink(links, "docs/page.md", "page.md", pages.places() | pages.made()) == place
    shown = {*methods.pages(), *reference.pages()}
    for source in (source for source in pages.places() if source.endswith(".md")):
        for _, _, target in pages.LINK.findall((pages.ROOT / source).read_text("utf-8")):
            found = pages.made().get(
                pages._normal(PurePosixPath(source).parent / target.partition("#")[0]), "tutorials/"
            )
            assert found in shown or found.startswith("tutorials/"), f"{source} links to {target}"


def test_a_link_to_nowhere_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"docs/page\.md links to nothing\.md, which is not there"):
        pages.relink("[a](nothing.md)", "docs/page.md", "page.md", {})


def test_lists_are_as_mkdocs_reads_them() -> None:
    text = "Some:\n- a\n  more\n  - b\n- c\n\n    code\n"
    assert pages.relist(text) == "Some:\n\n- a\n    more\n    - b\n- c\n\n      code\n".replace(
        "      code", "      code"
    )


def test_a_docstring_becomes_headings_formulas_and_lists() -> None:
    text = "FedX: a title.\n\nSymbols\n    a    a number\n\nReadings\n- One: ``b``.\n"
    made = "FedX: a title.\n\n\n### Symbols\n\n    a    a number\n\n\n### Readings\n\n- One: `b`."
    assert methods.said(text) == made


def test_every_public_name_and_every_setting_has_its_place() -> None:
    python = reference.names()
    for name in fedgraft._HOME:
        assert f".{name}\n" in python, name
    for page in (reference.files(), reference.settings()):
        assert not [line for line in page.splitlines() if line.endswith("|  |")], "a field without a meaning"


def public() -> Iterator[griffe.Object]:
    """Whatever the page of the Python names shows, as it shows it."""
    package = griffe.load("fedgraft", extensions=griffe.load_extensions(Describe))
    for line in reference.names().splitlines():
        if line.startswith("::: "):
            found = package[line.removeprefix("::: fedgraft.")]
            yield found
            yield from (each for name, each in found.members.items() if found.is_class and not name.startswith("_"))


def test_every_public_name_says_what_it_is_takes_and_gives() -> None:
    silent, lacking = [], []
    for found in public():
        if found.docstring is None and not found.is_alias:
            silent.append(found.path)
        elif isinstance(found, griffe.Function) and found.docstring is not None:
            lacking += [f"{found.path}: {name}" for name in undescribed(found)]
            if isinstance(found.parent, griffe.Module):
                assert "\nReturns:\n" in found.docstring.value, found.path
    assert silent == []
    assert lacking == []


@pytest.mark.slow
def test_no_meaning_is_left_over() -> None:
    """A name that was taken out of the code takes its meaning along."""
    used = {each.name for found in public() if isinstance(found, griffe.Function) for each in found.parameters}
    held = {
        name for found in public() for name in (found.name, f"{found.parent.name}.{found.name}" if found.parent else "")
    }
    assert set(ANYWHERE) <= used
    assert set(ATTRIBUTES) <= held


def test_every_command_is_there() -> None:
    page = reference.commands()
    for command in ("run", "compare", "recommend", "deploy init", "deploy demo", "export"):
        assert f"\n## fedgraft {command}\n" in page
    assert "`--batch-size`" in page


def test_output_of_a_cell_is_what_a_terminal_shows_in_the_end() -> None:
    assert (
        tutorials._text("a\r\n\x1b[1mb\x1b[0m\r\n10 %\r20 %\r\n━━ left\n") == '```text title="output"\na\nb\n20 %\n```'
    )
    assert tutorials._text("\r\n") == ""
