"""Metrics against scikit-learn's, that tallies add up, and what becomes of outputs that are not finite."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.metrics import (
    AUC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    CalibrationError,
    LabelAUC,
    LabelF1,
    LogLoss,
    MacroF1,
    MeanAbsoluteError,
    Metric,
    Perplexity,
    RootMeanSquaredError,
)
from fedgraft.core.settings import METRICS, TASKS
from fedgraft.core.task import Classification, MultiLabel, NextToken, Regression, Task, kind_named, kind_of

SETS = {"classification": Classification(4), "multi-label": MultiLabel(3), "regression": Regression(2)}


def drawn(task: Task, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs with ties among them, and targets that they have something to do with."""
    rng = torch.Generator().manual_seed(seed)
    outputs = (2 * torch.randn(count, task.outputs, generator=rng)).round(decimals=1)
    if isinstance(task, Classification):
        return outputs, (outputs + torch.randn(outputs.shape, generator=rng)).argmax(dim=1)
    if isinstance(task, MultiLabel):
        return outputs, (outputs + torch.randn(outputs.shape, generator=rng) > 0).float()
    return outputs, outputs + torch.randn(outputs.shape, generator=rng)


def value(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    return metric.value(metric.tally(outputs, targets))


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_agrees_with_scikit_learn(classes: int) -> None:
    outputs, y = drawn(Classification(classes), 300)
    p, answers = outputs.double().softmax(dim=1).numpy(), outputs.argmax(dim=1).numpy()
    truth = y.numpy()
    scores = (outputs[:, 1] - outputs[:, 0]).numpy() if classes == 2 else p
    expected = {
        Accuracy: reference.accuracy_score(truth, answers),
        BalancedAccuracy: reference.balanced_accuracy_score(truth, answers),
        MacroF1: reference.f1_score(truth, answers, average="macro"),
        LogLoss: reference.log_loss(truth, p),
        AUC: reference.roc_auc_score(truth, scores, multi_class="ovr"),
        AveragePrecision: reference.average_precision_score(truth if classes == 2 else np.eye(4)[truth], scores),
    }
    for metric, figure in expected.items():
        assert value(metric(), outputs, y) == pytest.approx(figure, abs=1e-9), metric.name


def test_values_and_labels_agree_with_scikit_learn() -> None:
    answers, y = drawn(Regression(2), 200)
    assert value(R2(), answers, y) == pytest.approx(reference.r2_score(y, answers), abs=1e-6)
    assert value(MeanAbsoluteError(), answers, y) == pytest.approx(reference.mean_absolute_error(y, answers), abs=1e-6)
    error = math.sqrt(reference.mean_squared_error(y.flatten(), answers.flatten()))
    assert value(RootMeanSquaredError(), answers, y) == pytest.approx(error, abs=1e-6)
    scores, labels = drawn(MultiLabel(3), 200)
    assert value(LabelF1(), scores, labels) == pytest.approx(
        reference.f1_score(labels.numpy(), (scores > 0).numpy(), average="macro")
    )
    assert value(LabelAUC(), scores, labels) == pytest.approx(reference.roc_auc_score(labels, scores, average="macro"))


def test_calibration_by_hand() -> None:
    """Two bins are used: 0.6 confident and right twice of two, 0.9 confident and right once of two."""
    p = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1], [0.9, 0.1]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    assert value(CalibrationError(), p.log(), y) == pytest.approx((2 * abs(0.6 - 1) + 2 * abs(0.9 - 0.5)) / 4)


def test_perplexity_of_even_odds_is_the_number_of_tokens() -> None:
    assert value(Perplexity(), torch.zeros(7, 13), torch.arange(7)) == pytest.approx(13)


def test_a_figure_that_means_nothing_is_nan() -> None:
    one_class = torch.zeros(5, dtype=torch.int64)
    for metric in (AUC(), AveragePrecision()):
        assert math.isnan(value(metric, torch.randn(5, 2), one_class))
    assert math.isnan(value(R2(), torch.randn(5, 1), torch.ones(5, 1)))
    assert math.isnan(value(Accuracy(), torch.zeros(0, 2), one_class[:0]))


@pytest.mark.parametrize("task", SETS.values(), ids=list(SETS))
@given(cut=st.integers(1, 59), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_tallies_of_parts_add_up_to_that_of_the_whole(task: Task, cut: int, seed: int) -> None:
    outputs, targets = drawn(task, 60, seed)
    for metric in (METRICS.make(name) for name in METRICS if task.name in METRICS[name].tasks):
        joined = metric.add(metric.tally(outputs[:cut], targets[:cut]), metric.tally(outputs[cut:], targets[cut:]))
        assert metric.value(joined) == pytest.approx(value(metric, outputs, targets), nan_ok=True), metric.name


def test_the_pooled_figure_is_not_the_mean_of_the_parts() -> None:
    """Two clients, each ranked perfectly, with scores on different scales: together they are not."""
    y = torch.tensor([0, 1])
    low, high = torch.tensor([[0.0, -5.0], [0.0, -4.0]]), torch.tensor([[0.0, 4.0], [0.0, 5.0]])
    auc = AUC()
    tallies = [auc.tally(low, y), auc.tally(high, y)]
    assert [auc.value(tally) for tally in tallies] == [1.0, 1.0]
    assert auc.value(auc.add(*tallies)) == 0.75


@pytest.mark.parametrize("task", [Classification(3), MultiLabel(2)])
def test_outputs_that_are_not_finite_are_wrong_answers(task: Task) -> None:
    _, targets = drawn(task, 40)
    right = task.wrong(targets) * -1 if isinstance(task, MultiLabel) else 50.0 * torch.eye(3)[targets]
    right[:10] = math.nan
    metrics = task.judges()
    tallies, broken = task.judge(right, targets, metrics)
    assert broken == 10
    assert metrics[0].value(tallies[metrics[0].name]) < 0.9
    loss = next(metric for metric in metrics if not metric.bounded)
    assert loss.value(tallies[loss.name]) == pytest.approx(0, abs=1e-6)


def test_a_model_that_gives_no_number_is_always_wrong() -> None:
    y = torch.tensor([0, 0, 0, 1])
    tallies, broken = Classification(2).judge(torch.full((4, 2), math.nan), y, [Accuracy(), LogLoss(), AUC()])
    assert broken == 4
    assert Accuracy().value(tallies["accuracy"]) == 0
    assert AUC().value(tallies["auc"]) == 0
    assert math.isnan(LogLoss().value(tallies["log_loss"]))


def test_tokens_that_are_not_asked_for_do_not_count() -> None:
    task = NextToken(5)
    targets = torch.tensor([[1, -100], [2, 3]])
    outputs = 50.0 * torch.eye(5)[torch.tensor([[1, 0], [2, 4]])]
    tallies, _ = task.judge(outputs, targets, task.judges())
    assert tallies["token_accuracy"].tolist() == [2, 3]
    assert task.loss(outputs, targets) == pytest.approx(50 / 3, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (Classification, [-1, 2], "negative label -1"),
        (Classification, [0.5, 1], "labels must be integers"),
        (Classification, [[0, 1]], "one number a sample"),
        (MultiLabel, [[0, 2]], "zeros and ones"),
        (Regression, [math.inf, 1], "NaN or infinite"),
        (NextToken, [[0, -4]], "negative token"),
    ],
)
def test_targets_of_another_kind_are_refused(kind: type[Task], raw: list[object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        kind.clean(np.array(raw), "y_train in site 1")


@pytest.mark.parametrize(
    ("task", "raw", "words"),
    [
        (Classification(3), [0, 3], "beyond the federation's 3 classes"),
        (MultiLabel(2), [[0, 1, 0]], "3 labels for each sample, where 2 are expected"),
        (Regression(), [[0.5, 1.0]], "2 values for each sample, where 1 are expected"),
        (NextToken(4), [[0, 4]], "beyond a vocabulary"),
    ],
)
def test_targets_beyond_what_was_agreed_are_refused(task: Task, raw: list[object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        task.fits(np.array(raw), "y_train")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ([0, 1, 2], "classification"),
        ([True, False], "classification"),
        ([[0], [3]], "classification"),
        ([0.5, 1.5], "regression"),
        ([[0.5, 1.5]], "regression"),
        ([[0, 1], [1, 1]], "multi-label"),
        ([[0, 1], [7, 1]], "next-token"),
    ],
)
def test_targets_tell_what_is_learned(raw: list[object], name: str) -> None:
    assert kind_of(np.array(raw), "y").name == name


def test_whole_numbers_as_floats_are_asked_about() -> None:
    with pytest.raises(UserError, match=r"classes .* or amounts"):
        kind_of(np.array([0.0, 1.0, 1.0]), "y_train in mine.npz")
    assert Classification.clean(np.array([0.0, 2.0]), "y").tolist() == [0, 2]


def test_a_task_is_named_with_its_outputs_or_without() -> None:
    assert kind_named("regression") == (Regression, None)
    assert kind_named("classification:7") == (Classification, 7)
    for text in ("classification:0", "classification:many", "regression:shift=2"):
        with pytest.raises(UserError):
            kind_named(text)
    task = Regression(2, 1.5, 3.0)
    assert TASKS.make(TASKS.label(task)) == task


def test_regression_learns_in_units_of_its_own_and_is_judged_in_those_of_the_targets() -> None:
    y = np.array([[100.0], [200.0], [300.0]])
    task = Regression.of({"y_train in a": y, "y_test in a": y * 10})
    assert (task.shift, task.scale) == (200.0, pytest.approx(81.6497))
    truth = torch.from_numpy(y).float()
    perfect = (truth - task.shift) / task.scale
    assert float(task.loss(perfect, truth)) == pytest.approx(0, abs=1e-9)
    tallies, _ = task.judge(perfect + 1, truth, task.judges())
    assert RootMeanSquaredError().value(tallies["rmse"]) == pytest.approx(task.scale, rel=1e-5)


def test_every_task_leads_with_a_metric_that_can_judge_it() -> None:
    assert set(TASKS) == {"classification", "multi-label", "regression", "next-token"}
    for name, kind in TASKS.items():
        judges = kind(2).judges()
        assert judges
        assert all(name in metric.tasks for metric in judges)
    with pytest.raises(UserError, match="auc cannot judge regression; there are r2, mae, rmse"):
        Regression().judges(["auc"])
    with pytest.raises(UserError, match="did you mean 'rmse'"):
        Regression().judges(["rsme"])
    with pytest.raises(UserError, match="twice"):
        Regression().judges(["mae", "mae"])


def test_shapes_are_those_of_the_tallies() -> None:
    for task in (Classification(4), MultiLabel(3), Regression(2), NextToken(4)):
        outputs, targets = drawn(task if not isinstance(task, NextToken) else Classification(4), 30)
        for metric in (METRICS.make(name) for name in METRICS if task.name in METRICS[name].tasks):
            tally = metric.tally(outputs, targets)
            assert metric.single or tally.shape == metric.shape(task.outputs), metric.name
            assert metric.possible(tally, 30, 0), metric.name
