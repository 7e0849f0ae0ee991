"""Metrics against torchmetrics and torch: ties, one class, lists that are shorter than the number that counts.

Shape letters: G number of groups, N number of rows, R number of items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from recsys.inputs.columns import LabelColumn
from recsys.metrics.binned import BinnedScores
from recsys.metrics.exact import Metrics, measure
from recsys.metrics.grouped import coverage, group_metrics
from recsys.metrics.ranked import measure_ranks
from recsys.metrics.regression import NumberMetrics, measure_label
from recsys.metrics.resampled import Measured, Rows

classification = pytest.importorskip("torchmetrics.functional.classification", reason="needs torchmetrics")
regression = pytest.importorskip("torchmetrics.functional.regression")
retrieval = pytest.importorskip("torchmetrics.functional.retrieval")


def _rows(seed: int, *, tied: bool, num_rows: int = 300) -> tuple[Any, Any, Any]:
    """Logits, labels and weights, some of them 0."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 2, num_rows)
    logits = np.round(logits) if tied else logits
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    return logits, labels, generator.integers(0, 4, num_rows).astype(np.float64)


def _expected(logits: Any, labels: Any) -> tuple[float, float, float, float]:
    """AUC, loss, NE and calibration of rows that count equally."""
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    loss = float(functional.binary_cross_entropy_with_logits(x, y))
    mean = y.mean().expand(len(y))
    base = float(functional.binary_cross_entropy(mean, y))
    auc = float(classification.binary_auroc(x.sigmoid(), y.long()))
    return auc, loss, loss / base, float(x.sigmoid().mean() / y.mean())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_rows(seed: int, tied: bool) -> None:
    logits, labels, weights = _rows(seed, tied=tied)
    found = measure(logits, labels)
    of_binned = BinnedScores()
    of_binned.add(logits, labels)
    binned = of_binned.metrics()
    assert binned is not None
    assert binned.auc_error is not None
    expected = _expected(logits, labels)
    assert _numbers(found) == pytest.approx(expected, rel=1e-5)
    assert _numbers(binned) == pytest.approx(expected, rel=1e-5, abs=binned.auc_error)
    # A weight counts as so many rows, 0 as none.
    times = weights.astype(np.int64)
    repeated = _expected(np.repeat(logits, times), np.repeat(labels, times))
    assert _numbers(measure(logits, labels, weights)) == pytest.approx(repeated, rel=1e-5)


def _numbers(metrics: Metrics) -> tuple[float | None, ...]:
    return metrics.auc, metrics.loss, metrics.ne, metrics.calibration


def test_gauc_is_the_mean_by_rows_of_groups_with_both_labels() -> None:
    """The last groups have one row, and one label."""
    logits, labels, _ = _rows(5, tied=True)
    groups = np.concatenate((np.arange(300) % 20, [20, 21, 21]))
    logits, labels = np.append(logits, [1.0, 2, 3]), np.append(labels, [1.0, 0, 0])
    values = Measured(logits, Rows(labels=labels, groups=groups)).values()
    total, num_rows = 0.0, 0
    for group in range(22):
        at = groups == group
        if len(set(labels[at])) == 2:
            x = torch.from_numpy(logits[at]).sigmoid()
            total += float(classification.binary_auroc(x, torch.from_numpy(labels[at]).long())) * at.sum()
            num_rows += int(at.sum())
    assert values["gauc"] == pytest.approx(total / num_rows, rel=1e-5)


@pytest.mark.parametrize("top", [1, 4, 7, 10**12])
def test_first_rows_of_groups_of_any_length(top: int) -> None:
    """Groups of one row to ten, some without a positive one; more may count than any has."""
    generator = np.random.default_rng(top % 97)
    groups = np.repeat(np.arange(30), 1 + np.arange(30) % 10)
    scores, labels = generator.permutation(len(groups)).astype(np.float64), np.zeros(len(groups))
    labels[generator.random(len(groups)) < 0.3] = 1
    found = group_metrics(scores, labels, groups, top)
    items = generator.integers(50, size=len(groups))
    shown: set[int] = set()
    for group in range(30):
        at = groups == group
        x, y = torch.from_numpy(scores[at]), torch.from_numpy(labels[at]).long()
        first = min(top, len(y))
        shown |= set(items[at][np.argsort(-scores[at])[:first]].tolist())
        if not y.any():
            assert all(np.isnan(found[name][0][group]) for name in ("hit_rate", "recall", "ndcg", "mrr"))
            continue
        reciprocal = float(retrieval.retrieval_reciprocal_rank(x, y))
        expected = {
            "hit_rate": float(retrieval.retrieval_hit_rate(x, y, top_k=first)),
            "recall": float(retrieval.retrieval_recall(x, y, top_k=first)),
            "ndcg": float(retrieval.retrieval_normalized_dcg(x, y, top_k=first)),
            "mrr": reciprocal if reciprocal >= 1 / top else 0,
        }
        for name, value in expected.items():
            assert found[name][0][group] == pytest.approx(value, abs=1e-6), name
    assert coverage(scores, groups, items, top) == pytest.approx(len(shown) / len(set(items.tolist())))


@pytest.mark.parametrize("num_items", [3, 40])
def test_ranks_among_all_items(num_items: int) -> None:
    """Fewer items than count, and more."""
    generator = np.random.default_rng(num_items)
    scores = torch.from_numpy(generator.permuted(np.tile(np.arange(num_items) / 4, (25, 1)), axis=1))
    targets = torch.from_numpy(generator.integers(num_items, size=25))
    own = scores.gather(1, targets[:, None])
    losses = functional.cross_entropy(scores, targets, reduction="none").numpy()
    weights = generator.integers(0, 3, 25).astype(np.float64)
    ranks = (scores > own).sum(dim=1).double().numpy()
    found = measure_ranks(ranks, losses, weights, num_items=num_items)
    is_target = functional.one_hot(targets, num_items)
    first = min(10, num_items)
    of_rows = [
        (
            float(loss),
            float(retrieval.retrieval_hit_rate(x, y, top_k=first)),
            float(retrieval.retrieval_normalized_dcg(x, y, top_k=first)),
        )
        for loss, x, y in zip(losses, scores, is_target, strict=True)
    ]
    expected = np.average(of_rows, axis=0, weights=weights)
    assert (found.loss, found.hit_rate, found.ndcg) == pytest.approx(tuple(expected), rel=1e-6)


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_metrics_of_numbers(loss: str) -> None:
    """In the label's unit, but for the loss, which is in its ``std``; a weight counts as so many rows."""
    generator = np.random.default_rng(3)
    label = LabelColumn(
        name="stay", loss=loss, mean=40.0, std=12.0, **({"delta": 0.7} if loss == "huber" else {})
    )
    outputs, numbers = generator.normal(size=(2, 200))
    numbers = 40 + 12 * numbers
    weights = generator.integers(0, 3, 200)
    found = measure_label(label, outputs, numbers, weights.astype(np.float64))
    assert isinstance(found, NumberMetrics)
    x, y = (torch.from_numpy(np.repeat(values, weights)) for values in (outputs, numbers))
    scaled = (y - 40) / 12
    expected = {
        "rmse": regression.mean_squared_error(40 + 12 * x, y, squared=False),
        "mae": regression.mean_absolute_error(40 + 12 * x, y),
        "loss": functional.mse_loss(x, scaled)
        if loss == "mse"
        else functional.huber_loss(x, scaled, delta=0.7),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-6), name
