"""How schemes are written on the command line, and what is said about mistakes."""

import dataclasses
import re

import numpy as np
import pytest

from fedgraft.base.errors import UserError
from fedgraft.data.partition import (
    IID,
    SCHEMES,
    Blocks,
    Dirichlet,
    DirichletBalanced,
    DirichletClient,
    Dominant,
    Dominant1,
    Dominant1Star,
    Dominant3,
    Pathological,
    PathologicalRandom,
    Practical,
    listing,
)
from fedgraft.data.partition.scheme import Scheme, spell


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("dirichlet:0.1", Dirichlet(0.1)),
        ("dirichlet:1", Dirichlet(1.0)),
        ("dirichlet:0.1,min_train=50,min_test=2", Dirichlet(0.1, min_train=50, min_test=2)),
        ("pathological:2", Pathological(2)),
        ("pathological-random:2", PathologicalRandom(2)),
        ("practical", Practical()),
        ("practical:shares_seed=42", Practical(shares_seed=42)),
        ("dirichlet-balanced:0.01", DirichletBalanced(0.01)),
        ("dirichlet-balanced:0.01,min_size=10", DirichletBalanced(0.01, min_size=10)),
        ("dominant:n=600,k=5,s=20", Dominant(n=600, k=5, s=20)),
        ("dominant:n=300/900/1500,k=3..7,s=20", Dominant(n=(300, 900, 1500), k=range(3, 8), s=20)),
        ("dominant:n=900,k=30..70..5,s=12.5", Dominant(n=900, k=range(30, 71, 5), s=12.5)),
        (
            "dominant:n=600,k=5,s=20,test_size=100,remainder=last,train_start=2000,test_start=500",
            Dominant(600, 5, 20, test_size=100, remainder="last", train_start=2000, test_start=500),
        ),
        ("dominant-1:20", Dominant1(20)),
        ("dominant-1*:80", Dominant1Star(80)),
        ("dominant-3:20,n=900/1500/2100", Dominant3(20, n=[900, 1500, 2100])),
        ("dirichlet-client:0.3", DirichletClient(0.3)),
        ("dirichlet-client:0.3,n=1200,test_size=200", DirichletClient(0.3, n=1200, test_size=200)),
        ("iid", IID()),
        ("blocks", Blocks()),
        ("blocks:train=40", Blocks(train=40)),
    ],
)
def test_text_and_scheme_are_the_same_thing(text: str, scheme: Scheme) -> None:
    assert SCHEMES.make(text) == scheme
    assert scheme.text == text
    assert hash(SCHEMES.make(text)) == hash(scheme)


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        (" dirichlet:alpha=0.10 ", "dirichlet:0.1"),
        ("dirichlet:1e-3", "dirichlet:0.001"),
        ("dominant:s=20, k=3/4/5/6/7, n=300|900|1500", "dominant:n=300/900/1500,k=3..7,s=20"),
        ("dominant:n=600,k=18..43..3,s=20.0", "dominant:n=600,k=18..42..3,s=20"),
        ("dominant:n=600,k=5,s=20,remainder=even,train_start=0", "dominant:n=600,k=5,s=20"),
    ],
)
def test_other_spellings_have_one_canonical_text(spelling: str, canonical: str) -> None:
    assert SCHEMES.make(spelling).text == canonical


def test_numpy_numbers_are_numbers() -> None:
    assert Dirichlet(np.float64(0.1)).text == "dirichlet:0.1"
    assert Pathological(np.int64(2)).text == "pathological:2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirchlet:0.1", "no partition scheme is called 'dirchlet'; did you mean 'dirichlet'?"),
        ("", "no partition scheme is called ''"),
        ("dirichlet", "dirichlet needs alpha: write dirichlet:ALPHA"),
        ("dirichlet:", "dirichlet needs alpha"),
        ("dirichlet:x", "alpha must be a number between 0.000001 and 1000000, not 'x'"),
        ("dirichlet:0", "alpha must be a number between 0.000001 and 1000000, not 0"),
        ("dirichlet:-1", "alpha must be a number between"),
        ("dirichlet:nan", "alpha must be a number between"),
        ("dirichlet:inf", "alpha must be a number between"),
        ("dirichlet:0.1,0.2", "dirichlet does not take more than 1 bare values: write dirichlet:ALPHA"),
        ("dirichlet:0.1,alpha=0.2", "dirichlet was given alpha twice"),
        ("dirichlet:0.1,min_trian=3", "dirichlet has no parameter 'min_trian'; did you mean 'min_train'?"),
        ("dirichlet:0.1,min_train=0", "min_train must be a whole number from 1 up, not 0"),
        ("dirichlet:0.1,min_train=1.5", "min_train must be a whole number from 1 up, not 1.5"),
        ("dirichlet-balanced:0.1,min_size=1", "min_size must be a whole number from 2 up"),
        ("pathological:0", "classes must be a whole number from 1 up"),
        ("practical:3,4", "practical does not take more than 1 bare values: write practical[:shares_seed=42]"),
        ("practical:shares_seed=-1", "shares_seed must be a whole number from 0 to 4294967295, not -1"),
        ("practical:shares_seed=4294967296", "shares_seed must be a whole number from 0 to 4294967295"),
        ("iid:seed=3", "iid has no parameter 'seed'; it has: none"),
        ("dominant:600", "dominant needs k and s: write dominant:n=600,k=5,s=20"),
        ("dominant:n=600,s=20", "dominant needs k: write dominant:n=600,k=5,s=20"),
        ("dominant:n=600", "dominant needs k and s"),
        ("dominant:n=600,k=5,s=120", "s must be a percentage between 0 and 100, not 120"),
        ("dominant:n=600,k=7..3,s=20", "k must be a range such as 3..7 or 30..70..5, not '7..3'"),
        ("dominant:n=600,k=3..7..0,s=20", "k must be a range"),
        ("dominant:n=600,k=3..7..1..1,s=20", "k must be a range"),
        ("dominant:n=600,k=..7,s=20", "k must be a whole number, not ''"),
        ("dominant:n=0,k=5,s=20", "n must be a whole number from 1 up"),
        ("dominant:n=600,k=5,s=20,remainder=first", "remainder must be even or last, not 'first'"),
        ("dominant:n=600,k=5,s=20,test_start=-1", "test_start must be a whole number from 0 up"),
        ("dominant-1:101", "s must be a percentage between 0 and 100"),
        ("dominant-4:20", "did you mean 'dominant-"),
        ("dirichlet-client:0.3,n=0", "n must be a whole number from 1 up"),
    ],
)
def test_mistakes_get_one_sentence_that_helps(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        SCHEMES.make(text)
    assert sentence in str(refusal.value)


def test_the_list_names_every_scheme_and_its_syntax_begins_with_the_name() -> None:
    assert [entry.name for entry in listing()] == list(SCHEMES)
    for entry in listing():
        assert entry.syntax.startswith(entry.name)
        assert entry.about
        assert entry.paper
        assert SCHEMES[entry.name].__name__ == entry.python


@pytest.mark.parametrize("name", SCHEMES)
def test_the_list_shows_each_optional_parameter_with_its_default(name: str) -> None:
    """What stands in brackets is the default, the first where several words are allowed, as docs/partitions.md says."""
    kind = SCHEMES[name]
    shown = dict(re.findall(r"\[,(\w+)=([^\]]+)\]", kind.syntax))
    for field in dataclasses.fields(kind):
        if field.name in shown and field.default not in (None, dataclasses.MISSING):
            assert shown[field.name].partition("|")[0] == spell(field.default), f"{name}: {field.name}"
