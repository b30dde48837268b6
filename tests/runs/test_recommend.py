"""Whether joining pays: federations in which the answer is known by construction."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_network
from madeup import RMSE, compared, record, result
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core.metrics import AUC, Accuracy
from fedgraft.core.rounds import Round
from fedgraft.core.samples import Samples
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.learning import flags, rates
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.recommend import ranked, recommend, says
from fedgraft.runs.recommendation import Recommendation, Standing
from fedgraft.runs.run import Run
from fedgraft.runs.table import weighed

FEW: dict[str, Any] = {
    "rounds": 6, "lr": 0.1, "batch_size": 8, "workers": 1, "seeds": 2, "epochs": 2, "progress": False,
    "model": small_network(), "methods": ["ditto", "fedper"],
}  # fmt: skip


def alike(sites: int = 6, own: int = 8, noise: float = 1.6) -> fg.Federation:
    """Sites with the same two noisy classes and very few samples: together they know more than each alone."""
    rng = np.random.default_rng(3)

    def draw(count: int) -> tuple[Any, Any]:
        y = np.arange(count) % 2
        return ((2 * y - 1)[:, None] * 0.9 + noise * rng.standard_normal((count, 6))).astype(np.float32), y

    made = [fg.Site(*draw(own), *draw(400), *draw(60), name=f"site {name}") for name in "ABCDEFGH"[:sites]]
    return fg.own_data(made, task="classification:3", name="alike")


def contradictory() -> fg.Federation:
    """Sites that know their classes perfectly, and half of them call every class by the other's name."""
    rng = np.random.default_rng(4)

    def draw(site: int, count: int) -> tuple[Any, Any]:
        y = np.arange(count) % 2
        x = ((2 * y - 1)[:, None] * 3 + 0.3 * rng.standard_normal((count, 6))).astype(np.float32)
        return x, y if site % 2 else 1 - y

    made = [fg.Site(*draw(s, 16), *draw(s, 60), *draw(s, 30), name=f"site {s}") for s in range(6)]
    return fg.own_data(made, task="classification:3", name="contradictory")


@pytest.mark.slow
def test_sites_that_are_alike_should_join(tmp_path: Path) -> None:
    done = recommend(alike(), out=tmp_path / "race", **FEW)
    assert done.pays, str(done)
    assert done.take == done.best != "local"
    assert done.difference is not None
    assert done.difference.mean > 0.02
    assert all(site.gain is not None and site.interval is not None for site in done.sites)
    text = (tmp_path / "race" / "recommendation.txt").read_text()
    assert text.startswith("Joining pays")
    assert "4 federated methods were tried, in 10 runs" in " ".join(text.split())
    page = (tmp_path / "race" / "report.html").read_text()
    assert page.index(done.headline) < page.index("Did federation help?")
    told = json.loads((tmp_path / "race" / "recommendation.json").read_text())
    assert (told["take"], [site["name"] for site in told["sites"]]) == (done.take, [s.name for s in done.sites])
    assert told["bytes_up"] > 0


@pytest.mark.slow
def test_sites_that_contradict_each_other_should_not() -> None:
    done = recommend(contradictory(), **FEW)
    assert not done.pays
    assert done.take == "local"
    assert done.headline.startswith(("Joining does not pay", "It is not clear that joining pays"))
    assert done.told("pays") == []


def permuted(fed: fg.Federation) -> fg.Federation:
    """The same federation, with test labels that mean nothing."""
    rng = np.random.default_rng(5)
    clients = []
    for client in fed.clients:
        labels = client.test.labels[rng.permutation(len(client.test))]
        clients.append(replace(client, test=Samples(client.test.inputs, labels, client.test.preparation)))
    return replace(fed, clients=tuple(clients))


def test_test_data_have_no_say_in_the_choice() -> None:
    many = FEW | {"methods": ["ditto", "fedper", "fedrep", "lg-fedavg", "fedprox", "apfl"], "rounds": 3, "seeds": 1}
    fed = alike(3)
    seen = [recommend(each, **many) for each in (fed, permuted(fed))]
    assert list(seen[0].final.runs) == list(seen[1].final.runs)  # who was in the final
    assert len(seen[0].final.runs) == 3 + 3
    assert seen[0].best == seen[1].best
    figures = [{label: each.figures for label, each in one.standings.items()} for one in seen]
    assert figures[0] == figures[1]
    means = [[site.joined for site in one.sites] for one in seen]
    assert means[0] != means[1]  # the figures that are shown do come from test data


class Interrupt:
    """Stops after a number of rounds, and notes which it saw."""

    def __init__(self, after: int = 10**9) -> None:
        self.left, self.seen = after, list[tuple[str, int]]()

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        self.seen.append((run.method.name, run.config.seed))
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


@pytest.mark.slow
def test_an_interrupted_race_goes_on(tmp_path: Path) -> None:
    some = FEW | {"methods": ["ditto", "fedper", "fedrep", "lg-fedavg"], "rounds": 3, "seeds": 1, "checkpoint_every": 1}
    whole, torn, rest = Interrupt(), Interrupt(after=23), Interrupt()
    undisturbed = recommend(alike(3), out=tmp_path / "whole", watchers=[whole], **some)
    with pytest.raises(KeyboardInterrupt):
        recommend(alike(3), out=tmp_path / "torn", watchers=[torn], **some)
    assert not (tmp_path / "torn" / "recommendation.json").exists()
    resumed = recommend(alike(3), out=tmp_path / "torn", watchers=[rest], **some)
    assert torn.seen + rest.seen == whole.seen
    timeless = {"seconds", "lines", "validation"}
    facts = [{k: v for k, v in each.to_json().items() if k not in timeless} for each in (undisturbed, resumed)]
    assert facts[0] == facts[1]
    idle = Interrupt()
    again = recommend(alike(3), out=tmp_path / "torn", watchers=[idle], **some)
    assert not idle.seen  # nothing is left to do, and the answer is the same
    assert again.headline == resumed.headline
    with pytest.raises(UserError, match=r"another race .*rounds is 3 there and 4 here"):
        recommend(alike(3), out=tmp_path / "torn", **some | {"rounds": 4})


def test_what_cannot_be_answered_is_refused_and_nothing_written(tmp_path: Path) -> None:
    out = tmp_path / "race"
    with pytest.raises(UserError, match="one site alone"):
        recommend(alike(1), out=out, **FEW)
    fed = alike(2)
    bare = replace(fed, clients=tuple(replace(c, validation=c.validation.subset(slice(0, 0))) for c in fed.clients))
    with pytest.raises(UserError, match="no site has validation samples"):
        recommend(bare, out=out, **FEW)
    with pytest.raises(UserError, match="minutes has to be more than nothing"):
        recommend(fed, out=out, minutes=0, **FEW)
    with pytest.raises(UserError, match="seeds go up to"):
        recommend(fed, out=out, seed=10**18, **FEW)
    assert not out.exists()


def test_budgets(tmp_path: Path) -> None:
    short = FEW | {"rounds": 2, "seeds": 1}
    with pytest.raises(UserError, match=r"with 100 bytes .* nobody can join: fedper, which sends least, needs about"):
        recommend(alike(2), budget_bytes=100, **short)
    with pytest.raises(UserError, match="minutes are too few: such a race takes about"):
        recommend(alike(2), minutes=1e-6, **short)
    # 35 + 18 weights in floats, up and down, twice: what fedper keeps back is just what fedavg cannot afford
    done = recommend(alike(2), budget_bytes=(35 + 18) * 4 * 2 * 2 - 1, minutes=60, **short)
    assert done.best == "fedper"
    assert {"ditto", "fedavg", "fedavg-ft"} == set(done.left_out)
    assert "more than" not in done.left_out["ditto"]
    assert sum(done.cost[:2]) < (35 + 18) * 4 * 2 * 2


def test_methods_that_do_not_fit_the_task_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in "ab":
        x = rng.standard_normal((40, 3))
        rows = [f"{a:.4f},{b:.4f},{c:.4f},{a - b:.4f}" for a, b, c in x]
        (tmp_path / f"{site}.csv").write_text("\n".join(["one,two,three,dose", *rows]))
    out = tmp_path / "out" / "race"
    done = recommend(
        tmp_path, target="dose", model="linear", methods=["fedproto", "fedper"], rounds=2, seeds=2, workers=1,
        out=out, progress=False,
    )  # fmt: skip
    assert "classes" in done.left_out["fedproto"]
    assert done.final.config.data_seed == 0
    assert len({run.facts.digest["data"] for each in done.final.runs.values() for run in each}) == 1
    assert "chance has a say in the choice: a (" in done.notes[0]
    flags = "--target dose --model linear --method fedproto --method fedper --rounds 2 --seeds 2 --workers 1 --json"
    typed = CliRunner().invoke(app, ["recommend", str(tmp_path), *flags.split(), "--out", str(out)])
    assert typed.exit_code == 0, typed.output
    assert json.loads(typed.stdout) == json.loads((out / "recommendation.json").read_text()) == done.to_json()
    with pytest.raises(UserError, match=r"is that of a recommendation: the finalists' runs are below .*final"):
        fg.load(out)


def test_the_better_is_first_in_the_metrics_direction() -> None:
    made = {"a": 2.0, "b": 1.0, "c": math.nan, "d": 1.5}
    standings = {label: Standing((value,), 0.0, 0.0) for label, value in made.items()}
    assert ranked(standings, [RMSE]) == ["b", "d", "a", "c"]


def answered(
    ours: list[list[float]], alone: list[list[float]], metric: Any = RMSE, classes: Any = None, **more: Any
) -> Recommendation:
    """An answer of figures made by hand, a list for each seed."""
    results = {
        label: [
            result(each, each, seed=seed, metrics=[metric], label_counts=None, samples=[7] * len(each),
                   rounds=[record(1, each, each, [metric])], **more)
            for seed, each in enumerate(several)
        ]
        for label, several in {"local": alone, "fedavg-ft": alone, "ditto": ours}.items()
    }  # fmt: skip
    standings = {label: Standing((value,), 1.0, 1.0) for label, value in (("local", 2.0), ("ditto", 1.0))}
    return Recommendation(compared(results), standings, "ditto", 5, 9, {}, classes=classes)


def test_a_site_is_judged_in_the_metrics_direction() -> None:
    done = answered([[1.0, 3.0, 2.0], [1.1, 3.1, 1.0]], [[2.0, 2.0, 1.0], [2.1, 2.1, 2.0]])
    assert [site.verdict for site in done.sites] == ["pays", "does not pay", "not more than noise"]
    assert done.sites[0].gain == pytest.approx(1.0)
    assert "3 sites are too few" in done.lines[1]
    assert not done.pays  # as many lose as gain
    assert done.take == "local"


def test_one_seed_says_nothing_of_a_metric_without_counts() -> None:
    done = answered([[1.0, 1.0]], [[2.0, 2.0]])
    assert [site.verdict for site in done.sites] == ["unknown", "unknown"]
    assert done.take == "local"


def test_a_ranking_counts_by_its_rarer_class() -> None:
    rng = np.random.default_rng(0)

    def site(ones: int, zeros: int) -> fg.Site:
        y = np.array([1] * ones + [0] * zeros)
        x = rng.standard_normal((ones + zeros, 2)).astype(np.float32)
        return fg.Site(x, y, x, y, x, y)

    fed = fg.own_data([site(17, 1), site(20, 25), site(4, 0)])
    assert says(fed, [AUC(), Accuracy()]) == {"auc": [1, 20, 0]}
    assert weighed([0.1, 0.9, None], [1, 20, 0]) == pytest.approx((0.1 + 20 * 0.9) / 21)
    assert math.isnan(weighed([None], [3]))


def test_that_weight_is_near_the_best_one_for_an_auc() -> None:
    """Drawn scores, no data: the variance of an AUC times its rarer class's samples is much the same everywhere."""
    rng = np.random.default_rng(0)
    sites = [(17, 1), (20, 25), (40, 60), (33, 3)]

    def areas(positives: int, negatives: int) -> Any:
        ill, well = rng.normal(1.2, 1, (2000, positives, 1)), rng.normal(0, 1, (2000, 1, negatives))
        return (ill > well).mean(axis=(1, 2))

    drawn = np.array([areas(*site) for site in sites])
    rarer, samples, alike = np.array([min(site) for site in sites]), np.array([sum(site) for site in sites]), np.ones(4)
    scaled = drawn.var(axis=1) * rarer
    assert scaled.max() / scaled.min() < 2.2

    def lost(weights: Any) -> float:
        """The share of the precision of the best weights that others waste."""
        best = 1 / (1 / drawn.var(axis=1)).sum()
        return float(1 - best / np.average(drawn, axis=0, weights=weights).var())

    assert lost(rarer) < 1 / 9
    assert lost(rarer) < lost(samples)
    assert lost(alike) > 0.4


def test_two_healthy_patients_do_not_make_joining_pay() -> None:
    auc = MetricInfo.of(AUC())
    figures = [[0.9, 0.9], [0.9, 0.9]], [[0.5, 0.5], [0.51, 0.51]]
    done = answered(*figures, metric=auc, classes=[(29, 2), (29, 40)])
    assert [site.verdict for site in done.sites] == ["not more than noise", "pays"]
    assert "over the number of test samples and seeds" in " ".join(done.lines)
    assert [site.verdict for site in answered(*figures, metric=auc).sites] == ["pays", "pays"], "by seeds alone"
    assert "2 sites are too few for a test" in done.lines[-2 - len(done.notes) - 1]


def test_the_page_has_the_sites_and_names_few_of_many(tmp_path: Path) -> None:
    ours = [[1.0 + at / 100 for at in range(12)], [1.1 + at / 100 for at in range(12)]]
    done = answered(ours, [[2.0] * 12, [2.1] * 12])
    assert len(done.told("pays")) == 12
    assert " and 4 more." in " ".join(done.lines)
    page = done.report(tmp_path / "r.html").read_text()
    for site in done.sites:
        assert f'<th scope="row">{site.name}</th>' in page
    assert page.index('data-verdict="pays"') < page.index("Did federation help?")


def test_a_race_in_which_nobody_learned_says_so() -> None:
    def alone(last: float) -> str:
        done = answered([[1.0, 1.0]] * 2, [[2.0, 2.0]] * 2)
        for each in done.final.results["local"]:
            first = each.rounds[0].model_copy(update={"loss": 2.3})
            each.rounds[:] = [first, first.model_copy(update={"round": 2, "loss": last})]
        return " ".join(done.lines)

    assert "the training loss went from 2.3 to 2.29. Try a larger --lr" in alone(2.29)
    assert "Hardly anything" not in alone(1.2)
    assert "went from 2.3 up to 999. Try a smaller --lr" in alone(999)


def test_a_method_that_loses_a_site_is_behind_one_that_loses_none() -> None:
    standings = {"better": Standing((0.9,), 0.0, 0.0, lost=1), "sound": Standing((0.5,), 0.0, 0.0)}
    assert ranked(standings, [MetricInfo.of(Accuracy())]) == ["sound", "better"]


def test_which_rates_are_tried() -> None:
    fed = alike(2, own=24)
    usual = RunConfig()
    few = [{"lr": 0.02, "batch_size": 32}, {"lr": 0.1, "batch_size": 32}, {"lr": 0.02, "batch_size": 8},
           {"lr": 0.1, "batch_size": 8}, {"lr": 0.004, "batch_size": 8}]  # fmt: skip
    assert rates(usual, fed) == few  # one batch of 24, twice: two steps in a round
    assert rates(configure(usual, {"steps": 20}), fed) == [{"lr": 0.02}, {"lr": 0.1}, {"lr": 0.004}]
    assert rates(usual, alike(2, own=160)) == [{"lr": 0.02}, {"lr": 0.1}, {"lr": 0.004}]  # ten steps
    assert rates(configure(usual, {"lr": 0.02}), fed) == []
    assert flags(few[-1]) == "--lr 0.004 --batch-size 8"


@pytest.mark.slow
def test_a_rate_is_found_where_the_usual_one_learns_nothing(tmp_path: Path) -> None:
    """Inputs of a hundredth of the usual size need steps that are longer by far."""
    fed = alike(3)

    def dim(samples: Samples) -> Samples:
        return Samples(samples.inputs / 100, samples.labels, samples.preparation)

    clients = tuple(replace(each, train=dim(each.train), validation=dim(each.validation)) for each in fed.clients)
    faint = replace(fed, clients=clients)
    some = {key: value for key, value in FEW.items() if key not in ("lr", "batch_size")}
    done = recommend(faint, out=tmp_path / "race", **some | {"seeds": 1})
    assert done.notes[-1].startswith("Clients trained with --lr 0.1 ")
    assert done.final.config.training.lr == 0.1
    assert len(list((tmp_path / "race" / "rates").iterdir())) == 5
    assert "4 federated methods were tried, in 15 runs" in " ".join(done.lines)
    race = (tmp_path / "race" / "race.toml").read_text()
    again = recommend(faint, out=tmp_path / "race", **some | {"seeds": 1})
    assert again.notes == done.notes
    assert (tmp_path / "race" / "race.toml").read_text() == race
