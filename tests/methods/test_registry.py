"""What holds for every registered method: a new one is covered the day it is registered."""

import pkgutil
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from conftest import CLASSES, blobs, fleet, simulate, specification
from torch import Tensor

import fedgraft
from fedgraft import methods
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.core.samples import Samples
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS, describe
from fedgraft.testing import awkward, state_of

make = METHODS.make

# What a test needs besides the parameter itself: other parameters that give it something to act on, or a value that
# the automatic choice below would not find.
COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("apple", "mu"): {"L": 1.0},  # three rounds are too few for the usual L
    ("apple", "schedule"): {"L": 1.0},
    ("apple", "half"): {"L": 1.0},
    ("apple", "select"): {"budget": 1},
    ("fedamp", "decay"): {"period": 1},  # the usual period is longer than the test
    ("heurfedamp", "decay"): {"period": 1},
    ("fedapa", "clip"): {"sign": "paper"},  # ascent makes weights negative
    ("fedas", "weighting"): {"fisher": False},
    ("fedfomo", "epsilon"): {"M": 1},  # somebody has to be left out
    ("fedfomo", "decay"): {"M": 1, "epsilon": 1.0},
    ("fedfomo", "fallback"): {"M": 1, "epsilon": 1.0, "validation": 0.9},  # few samples to train on: nobody is better
}
ALTERNATIVES: dict[tuple[str, str], Any] = {
    ("apple", "L"): 1.0,
    ("apple", "budget"): 1,
    ("fedfomo", "M"): 1,
    ("fedgpa", "threshold"): 0.3,  # high enough to drop somebody
    ("fedpac", "threshold"): 0.3,
    ("ditto", "personal_epochs"): 3,
    ("fedamp", "period"): 1,
    ("heurfedamp", "period"): 1,
    ("pfedhn", "clip"): 0.1,  # gradients are small here
    ("fedppa", "align_batch"): 4,  # nobody has 64 samples
    ("fedppa+", "align_batch"): 4,
    ("fedala", "limit"): 2,  # the first search settles before its limit,
    ("fedala", "threshold"): 0.0,  # and on blobs as soon as it may
}
# Methods whose parameters act on clients of different architectures, and settings that a parameter needs to act on.
FLEETS = {"flexifed", "fedppa", "fedppa+"}
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedppa", "statistics"): {"norm": True},
    ("fedppa+", "statistics"): {"norm": True},
}


def everything(method: Method, fed: Federation, **settings: Any) -> dict[str, Tensor]:
    """All that a run of three rounds leaves: server, clients, losses at both points."""
    spec = (fleet if method.name in FLEETS else specification)(fed, rounds=3, **{"batch_size": 8} | settings)
    done, server, engine = simulate(method, fed, spec, share=0.75, evaluate_every=3)
    left = {f"server/{name}": value for name, value in server.items()}
    for client, state in engine.states.items():
        left |= {f"{client}/{name}": value for name, value in state.items()}
    for point, summary in done[-1].test.items():
        left[point] = torch.tensor([value for figure in summary.figures.values() for value in figure.per_client])
    left["bytes"] = torch.tensor([[r.bytes_up, r.bytes_down] for r in done])
    return left


@cache
def ordinary(method: Method, settings: tuple[tuple[str, Any], ...]) -> dict[str, Tensor]:
    """What a method leaves as it is, once for all of its hyper-parameters."""
    return everything(method, blobs(), **dict(settings))


def another_value(method: str, parameter: Any) -> Any:
    default, rules = parameter.default, parameter.metadata
    if (method, parameter.name) in ALTERNATIVES:
        return ALTERNATIVES[method, parameter.name]
    if rules["choices"]:
        return next(choice for choice in rules["choices"] if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return default / 2 if default else 0.5


PARAMETERS = [(name, parameter) for name, method in METHODS.items() for parameter in fields(method)]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=[f"{n}-{p.name}" for n, p in PARAMETERS])
def test_every_hyper_parameter_changes_the_result(name: str, parameter: Any) -> None:
    fed, given = blobs(), COMPANIONS.get((name, parameter.name), {})
    settings = SETTINGS.get((name, parameter.name), {})
    before = ordinary(make(name, **given), tuple(settings.items()))
    after = everything(make(name, **{**given, parameter.name: another_value(name, parameter)}), fed, **settings)
    same = before.keys() == after.keys() and all(
        torch.equal(value.nan_to_num(-1), after[key].nan_to_num(-1)) for key, value in before.items()
    )
    assert not same, f"{name}: {parameter.name} has no effect"


def spoiled(fed: Federation) -> Federation:
    """The same training samples, and tests of which nothing can be learned."""
    rng = torch.Generator().manual_seed(1)

    def noise(like: Samples) -> Samples:
        return Samples(
            100 * torch.randn(like.inputs.shape, generator=rng),
            torch.randint(CLASSES, like.labels.shape, generator=rng),
        )

    return replace(fed, clients=[replace(data, test=noise(data.test)) for data in fed.clients])


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_learned_from_what_is_tested(name: str) -> None:
    runs = []
    for fed in (blobs(), spoiled(blobs())):
        spec = (fleet if name in FLEETS else specification)(fed, rounds=3, norm=True, batch_size=8, epochs=1)
        done, server, engine = simulate(make(name), fed, spec, share=0.75, evaluate_every=3)
        runs.append((state_of(server, engine), done[-1].test))
    (ours, figures), (theirs, others) = runs
    assert figures != others, "other samples were tested"
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_absent_clients_keep_their_state_bit_for_bit(name: str) -> None:
    fed = blobs()
    spec = specification(fed, rounds=2)
    done, _, engine = simulate(make(name), fed, spec, share=0.5, evaluate_every=2)
    never = set(range(len(fed))) - {client for this in done for client in this.participants}
    assert never, "the seed was chosen so that somebody is never picked"
    fresh = spec.initial
    for client in never:
        start = fresh(client, independent=make(name).independent_start)
        assert torch.equal(engine.states[client]["own"], start)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("name", METHODS)
def test_awkward_clients_are_served(name: str, norm: bool) -> None:
    fed = awkward()
    done, server, engine = simulate(make(name), fed, specification(fed, rounds=3, norm=norm), evaluate_every=3)
    assert not any(this.refused for this in done), done[-1].refused
    for holder in (server, *engine.states.values()):
        for key, value in holder.items():
            assert not value.is_floating_point() or bool(torch.isfinite(value).all()), key
    for point in ("received", "trained"):
        assert len(done[-1].test[point].per_client) == 4


@pytest.mark.parametrize("name", METHODS)
def test_clients_of_different_architectures_are_served_or_refused_in_a_sentence(name: str) -> None:
    fed = blobs()
    try:
        done, _, _ = simulate(make(name), fed, fleet(fed, rounds=2, norm=True), share=0.75)
    except UserError as refusal:
        assert "the same architecture" in str(refusal)  # noqa: PT017
        assert name not in FLEETS
    else:
        assert not any(this.refused for this in done)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name: str) -> None:
    fed = blobs((40, 40, 40, 40))
    done, _, _ = simulate(make(name), fed, specification(fed, rounds=5, lr=0.05), evaluate_every=5)
    headline = METHODS[name].headline
    assert done[-1].test[headline].pooled > 0.6, "two of three classes a client: chance is about a half"


@pytest.mark.parametrize("name", METHODS)
def test_a_lone_client_is_served(name: str) -> None:
    fed = blobs((12,))
    done, _, _ = simulate(make(name), fed, specification(fed, rounds=2))
    assert not done[-1].refused


@pytest.mark.parametrize("name", METHODS)
def test_it_describes_itself(name: str) -> None:
    facts = describe(METHODS[name])
    assert facts["idea"]
    assert facts["sends"]
    assert facts["headline"] in ("received", "trained")
    assert all(parameter["doc"] for parameter in facts["parameters"])


def test_names_and_parameters_are_checked_in_sentences() -> None:
    with pytest.raises(UserError, match="did you mean 'fedapa'"):
        make("fedapaa")
    with pytest.raises(UserError, match=r"no parameter 'Eta'; did you mean 'eta'"):
        make("fedapa", Eta=1)
    with pytest.raises(UserError, match="mu has to be between 0 and 1, not 2"):
        make("fedapa", mu=2)
    with pytest.raises(UserError, match="eta is a number, not 'much'"):
        make("fedapa", eta="much")
    with pytest.raises(UserError, match="eta is a number, not 1000"):
        make("fedapa", eta=10**400)
    with pytest.raises(UserError, match="fedapa has no parameter 'name'"):
        make("fedapa", **{"name": "fedavg"})
    with pytest.raises(UserError, match="sign is one of descent, paper"):
        make("fedapa", sign="up")
    with pytest.raises(UserError, match="clip is true or false"):
        make("fedapa", clip=1.5)


@pytest.mark.parametrize("name", METHODS)
def test_whatever_a_method_lets_people_see_is_explained(name: str) -> None:
    method, fed = make(name), blobs()
    done, *_ = simulate(method, fed, (fleet if name in FLEETS else specification)(fed, rounds=2), evaluate_every=2)
    assert set(method.shows) == set(done[-1].observed)
    assert all(len(meaning) > 20 for meaning in method.shows.values())


def test_every_file_is_registered_once_under_the_name_that_its_class_has() -> None:
    files = {f"{methods.__name__}.{module.name}" for module in pkgutil.iter_modules(methods.__path__)}
    assert {method.__module__ for method in METHODS.values()} == files
    for name, method in METHODS.items():
        assert method.name == name
        assert getattr(fedgraft, method.__name__) is method


@pytest.mark.slow
def test_names_are_known_before_torch_is_imported() -> None:
    asked = (
        "import sys, fedgraft.methods as m; assert 'fedapa' in m.METHODS and 'fedapaa' not in m.METHODS; "
        "print('torch' in sys.modules, m.METHODS['fedapa'].name, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "fedapa", "True"]


def frozen_backbone(*, whole: bool) -> torch.nn.Module:
    """Layers of which the first, or all but the head, are as they were trained elsewhere."""
    layers = [torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 4), torch.nn.ReLU()]
    for layer in layers if whole else layers[:1]:
        layer.requires_grad_(False)
    return torch.nn.Sequential(*layers, torch.nn.Linear(4, CLASSES))


@pytest.mark.parametrize("whole", [False, True], ids=["first layer", "all but the head"])
@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_stay_as_they_began_and_never_travel(name: str, whole: bool) -> None:
    fed = blobs()
    spec = specification(fed, rounds=2, build=partial(frozen_backbone, whole=whole))
    layout, method = spec.layout(0), make(name)
    assert layout.frozen.stop - layout.frozen.start == (35 + 10 + 24 if whole else 35)
    done, server, engine = simulate(method, fed, spec, share=0.75, evaluate_every=2)
    assert not any(this.refused for this in done)
    began = spec.initial(0)[layout.frozen]
    for client, state in engine.states.items():
        assert torch.equal(state["own"][layout.frozen], began), client
    trained, buffers = layout.trained, 10
    assert layout.width("all", "average") == trained + buffers
    for client in range(4):
        for entry, field in method.expects(server, client).items():
            assert max(field.shape, default=0) <= trained + buffers, entry
