"""The configuration reader: files, flags, the texts for methods, partitions and models.

What is taken has to survive a trip through the config.toml of a run directory.
"""

from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from fedgraft import methods, models
from fedgraft.core.settings import Training
from fedgraft.data.partition import SCHEMES
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.runs import directory
from fedgraft.runs.config import RunConfig, configure, participation_range, read
from trials.fuzz import Attempt, damage

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


def prepare() -> Attempt:
    """Nothing is slow here."""
    kinds = [_file, _values, _values, _params, _method_text, _partition_text, _model_text]
    recipe_names = list(recipes())
    methods.describe(METHODS["fedapa"])

    def attempt(rng: Random, room: Path) -> None:
        config, made = rng.choice(kinds)(rng, room, recipe_names)
        if config is None:
            return
        participation_range(config.participation)
        SCHEMES.make(config.partition)
        made = made or METHODS.make(config.method, **config.params)
        config = config.model_copy(update={"method": made.name, "params": made.parameters()})
        directory.write_config(room, config)
        again = configure(read(room / "config.toml"))
        assert again == config.model_copy(update={"params": again.params}), "config.toml repeats another run"
        assert METHODS.make(again.method, **again.params) == made

    return attempt


Made = tuple[RunConfig | None, Any]


def _file(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    (room / "run.toml").write_bytes(damage.damaged(rng, FILE.encode()))
    return configure(read(room / "run.toml")), None


def _values(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    """Random values for settings, given as keywords or in a file."""
    given: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 4])):
        name = rng.choice([*SETTINGS, damage.text(rng)])
        given[name] = damage.value(rng)
    if rng.random() < 0.3:
        given = {"training": {**given, "lr": rng.choice([0.1, 1])}}
    if rng.random() < 0.3:
        (room / "run.toml").write_text(tomli_w.dumps(_without_none(given)), "utf-8")
        given = read(room / "run.toml")
    recipe = rng.choice([None, None, *recipe_names, damage.text(rng)])
    return configure(given, {"rounds": 3}, recipe_name=recipe), None


def _params(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    """Random values for the hyper-parameters of any method."""
    name = rng.choice(list(METHODS))
    known = [p["name"] for p in methods.describe(METHODS[name])["parameters"]] or ["eta"]
    params = {rng.choice([*known, damage.text(rng)]): damage.value(rng) for _ in range(rng.randint(1, 3))}
    return configure({"method": name, "params": params}), None


def _method_text(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    text = rng.choice(METHOD_TEXTS)
    made = METHODS.make(_damaged_text(rng, text))
    assert METHODS.make(METHODS.label(made)) == made, "the label of a method is another method"
    return RunConfig(), made


def _partition_text(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    text = rng.choice(PARTITIONS)
    drawn = SCHEMES.make(_damaged_text(rng, text) if rng.random() < 0.9 else text)
    return configure({"partition": str(drawn)}), None


def _model_text(rng: Random, room: Path, recipe_names: list[str]) -> Made:
    text = _damaged_text(rng, rng.choice(MODELS))
    name = models.resolve(text, rng.choice([(1, 8, 8), (3, 32, 32), (12,)]), 10)
    assert models.resolve(name, (3, 32, 32), 10) is not None
    models.fleet(name, 8)
    return configure({"model": name}), None


def _damaged_text(rng: Random, text: str) -> str:
    if rng.random() < 0.3:
        words = list(text)
        words.insert(rng.randint(0, len(words)), damage.text(rng))
        return "".join(words)
    return damage.damaged(rng, text.encode()).decode("utf-8", rng.choice(["replace", "ignore", "surrogateescape"]))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value if inner is not None]
    return value
