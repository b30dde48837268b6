"""One definition of settings for flags, files and Python; every mistake is one sentence."""

from pathlib import Path
from typing import Any

import pytest

from fedgraft.base.errors import UserError
from fedgraft.papers import recipes
from fedgraft.runs.config import RunConfig, configure, read


def test_later_layers_win() -> None:
    config = configure({"rounds": 5, "training": {"lr": 0.1, "epochs": 7}}, {"rounds": 6, "lr": 0.2})
    assert (config.rounds, config.training.lr, config.training.epochs) == (6, 0.2, 7)


def test_a_recipe_is_the_lowest_layer() -> None:
    config = configure({"rounds": 3}, recipe_name="fedapa")
    assert (config.dataset, config.clients, config.rounds) == ("cifar10", 20, 3)
    assert (config.training.optimizer_state, config.training.drop_last) == ("kept", True)


@pytest.mark.parametrize("name", ["fedgpa", "fedppa"])
def test_a_recipe_crops_and_mirrors_colour_images_only(name: str) -> None:
    assert configure(recipe_name=name).augment
    assert configure({"dataset": "cifar100"}, recipe_name=name).augment
    for grey in ("mnist", "fashion-mnist", "emnist", "organamnist", "digits"):
        assert not configure({"dataset": grey}, recipe_name=name).augment
        assert not configure({"dataset": "cifar10"}, {"dataset": grey}, recipe_name=name).augment
        assert configure({"dataset": grey, "augment": True}, recipe_name=name).augment, "who asks for it gets it"


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_a_valid_configuration(name: str) -> None:
    from fedgraft.data.partition import SCHEMES

    assert SCHEMES.make(configure(recipe_name=name).partition)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ruonds": 3}, "there is no setting 'ruonds'; did you mean 'rounds'?"),
        ({"training": {"learning": 3}}, "there is no setting 'learning'"),
        ({"rounds": 0}, "rounds should be greater than or equal to 1, not 0"),
        ({"lr": -1}, "training.lr should be greater than 0, not -1"),
        ({"rounds": "many"}, "rounds should be a valid integer"),
        ({"participation": "0.9..0.2"}, "participation has to lie above 0 and up to 1, not '0.9..0.2'"),
        ({"participation": "all"}, "participation is a share such as 0.5 or a range such as 0.6..1, not 'all'"),
        ({"workers": 0}, "workers has to be at least 1, or auto"),
        ({"optimizer_state": "both"}, "training.optimizer_state should be 'fresh' or 'kept', not 'both'"),
        ({"training": 3}, "training should be"),
        ({"batch_size": 10**20}, "training.batch_size should be less than or equal to 1000000000, not 1"),
        ({"seed": 10**19}, "seed should be less than or equal to 1000000000000000000, not 10000000000000000000"),
        ({"data_seed": 10**19}, "data_seed should be less than or equal to 1000000000000000000"),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        configure(settings)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text('method = "fedapa"\nrounds = 4\n[params]\nmu = 0.3\n[training]\nlr = 0.5\n')
    config = configure(read(good))
    assert (config.method, config.params, config.training.lr) == ("fedapa", {"mu": 0.3}, 0.5)
    (tmp_path / "bad.toml").write_text("rounds = = 4")
    with pytest.raises(UserError, match="not a readable configuration file"):
        read(tmp_path / "bad.toml")
    for endless in ("rounds = " + "1" * 5000, "rounds = " + "[" * 20_000, "rounds = " + "{a=" * 20_000):
        (tmp_path / "bad.toml").write_text(endless)
        with pytest.raises(UserError, match="not a readable configuration file"):
            read(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="there is no configuration file"):
        read(tmp_path / "none.toml")


def test_a_misspelt_recipe() -> None:
    with pytest.raises(UserError, match="did you mean 'fedapa'"):
        configure(recipe_name="fedap")


def test_defaults_are_valid() -> None:
    assert RunConfig().participation == "1"
