"""The configuration reader: files, flags, the texts for methods, partitions and models.

What is taken has to survive a trip through the config.toml of a run directory.
"""

from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgraft import methods, models
from fedgraft.core.settings import Training
from fedgraft.data.partition import SCHEMES
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.runs import directory
from fedgraft.runs.config import RunConfig, configure, participation_range, read
from trials.fuzz import Reader, damage

SETTINGS = [*RunConfig.model_fields, *Training.model_fields]
FILE = """\
method = "fedapa"
dataset = "digits"
clients = 10
partition = "dirichlet:0.1"
participation = "0.6..1"
checkpoint_every = "auto"
deadline = 3.5
model = "cnn-digits"
[params]
mu = 0.3
clip = false
sign = "descent"
[training]
lr = 0.05
clip_norm = 10.0
optimizer_state = "kept"
"""
PARTITIONS = [
    "dirichlet:0.1", "dirichlet:0.1,minimum=2", "practical", "pathological:2", "pathological-random:2", "iid",
    "dominant:n=6,k=1/2,s=20", "dominant:n=9,k=1..3,s=30..70..5", "dominant-1:80,n=12,remainder=last",
    "dirichlet-client:0.3", "dirichlet-balanced:0.1",
]  # fmt: skip
METHOD_TEXTS = [
    "fedapa:mu=0.3,clip=false", "apple:L=0.1,budget=3", "fedavg", "fedgpa:threshold=0.5", "fedppa+:align_batch=4",
]  # fmt: skip
MODELS = ["auto", "mlp:20-10", "linear", "vgg11:0.25", "vgg-family:0.5", "lenet5,cnn-apple", "cnn-digits"]


Made = tuple[RunConfig, Any]


def prepare() -> Reader:
    """Whatever may be asked for is imported before anybody watches."""
    for registry in (METHODS, SCHEMES, models.MODELS):
        for name in registry.shipped:
            assert registry[name]
    methods.describe(METHODS["fedapa"])
    return Reader(
        st.one_of(
            st.tuples(st.just(_file), damage.damaged(FILE.encode())),
            st.tuples(st.just(_keywords), st.tuples(_values(), _recipe_names())),
            st.tuples(st.just(_written), st.tuples(_values(), _recipe_names())),
            st.tuples(st.just(_params), _hyper_parameters()),
            st.tuples(st.just(_method_text), _damaged_texts(METHOD_TEXTS)),
            st.tuples(st.just(_partition_text), st.sampled_from(PARTITIONS) | _damaged_texts(PARTITIONS)),
            st.tuples(
                st.just(_model_text),
                st.tuples(_damaged_texts(MODELS), st.sampled_from([(1, 8, 8), (3, 32, 32), (12,)])),
            ),
        ),
        _attempt,
    )


def _attempt(case: Any, room: Path) -> None:
    read_one, given = case
    config, made = read_one(given, room)
    participation_range(config.participation)
    SCHEMES.make(config.partition)
    made = made or METHODS.make(config.method, **config.params)
    config = config.model_copy(update={"method": made.name, "params": made.parameters()})
    directory.write_config(room, config)
    again = configure(read(room / "config.toml"))
    assert again == config.model_copy(update={"params": again.params}), "config.toml repeats another run"
    assert METHODS.make(again.method, **again.params) == made


def _file(content: bytes, room: Path) -> Made:
    (room / "run.toml").write_bytes(content)
    return configure(read(room / "run.toml")), None


def _keywords(given: tuple[dict[str, Any], str | None], _: Path) -> Made:
    settings, recipe = given
    return configure(settings, {"rounds": 3}, recipe_name=recipe), None


def _written(given: tuple[dict[str, Any], str | None], room: Path) -> Made:
    settings, recipe = given
    (room / "run.toml").write_text(tomli_w.dumps(_without_none(settings)), "utf-8")
    return _keywords((read(room / "run.toml"), recipe), room)


def _params(given: tuple[str, dict[str, Any]], _: Path) -> Made:
    method, params = given
    return configure({"method": method, "params": params}), None


def _method_text(text: str, _: Path) -> Made:
    made = METHODS.make(text)
    assert METHODS.make(METHODS.label(made)) == made, "the label of a method is another method"
    return RunConfig(), made


def _partition_text(text: str, _: Path) -> Made:
    return configure({"partition": str(SCHEMES.make(text))}), None


def _model_text(given: tuple[str, tuple[int, ...]], _: Path) -> Made:
    text, shape = given
    name = models.resolve(text, shape, 10)
    assert models.resolve(name, (3, 32, 32), 10) is not None
    models.fleet(name, 8)
    return configure({"model": name}), None


@st.composite
def _values(draw: DrawFn) -> dict[str, Any]:
    """Values of any kind for a few settings."""
    names = st.sampled_from(SETTINGS) | damage.texts()
    given = draw(st.dictionaries(names, damage.values(), min_size=1, max_size=4))
    return {"training": {**given, "lr": draw(st.sampled_from([0.1, 1]))}} if draw(damage.rarely()) else given


def _recipe_names() -> SearchStrategy[str | None]:
    return st.none() | st.sampled_from([*recipes()]) | damage.texts()


@st.composite
def _hyper_parameters(draw: DrawFn) -> tuple[str, dict[str, Any]]:
    """Values of any kind for the hyper-parameters of any method."""
    name = draw(st.sampled_from([*METHODS]))
    known = [p["name"] for p in methods.describe(METHODS[name])["parameters"]] or ["eta"]
    return name, draw(st.dictionaries(st.sampled_from(known) | damage.texts(), damage.values(), min_size=1, max_size=3))


@st.composite
def _damaged_texts(draw: DrawFn, good: list[str]) -> str:
    text = draw(st.sampled_from(good))
    if draw(damage.rarely()):
        at = draw(st.integers(0, len(text)))
        return text[:at] + draw(damage.texts()) + text[at:]
    return draw(damage.damaged(text.encode())).decode(
        "utf-8", draw(st.sampled_from(["replace", "ignore", "surrogateescape"]))
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value if inner is not None]
    return value
