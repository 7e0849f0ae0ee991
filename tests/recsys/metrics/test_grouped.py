"""Metrics of groups are those of torchmetrics, group by group."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recsys.metrics.exact import auc
from recsys.metrics.grouped import coverage, group_metrics

retrieval = pytest.importorskip("torchmetrics.functional.retrieval", reason="needs torchmetrics")


def _rows(seed: int, num_rows: int = 400, num_groups: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(num_groups), generator.integers(0, num_groups, num_rows - num_groups)])
    labels = (generator.random(num_rows) < 0.15).astype(np.float64)
    return generator.normal(size=num_rows), labels, groups


@pytest.mark.parametrize("top", [1, 3, 50])
def test_each_group_has_the_metrics_of_torchmetrics(top: int) -> None:
    scores, labels, groups = _rows(top)
    found = group_metrics(scores, labels, groups, top)
    peers = {
        "hit_rate": retrieval.retrieval_hit_rate,
        "recall": retrieval.retrieval_recall,
        "ndcg": retrieval.retrieval_normalized_dcg,
    }
    for group in range(groups.max() + 1):
        rows = groups == group
        at, y = torch.from_numpy(scores[rows]), torch.from_numpy(labels[rows]).long()
        if not y.any():
            assert all(np.isnan(values[group]) for values, _ in found.values())
            continue
        for name, peer in peers.items():
            assert found[name][0][group] == pytest.approx(float(peer(at, y, min(top, len(y)))), abs=1e-6)
        reciprocal = float(retrieval.retrieval_reciprocal_rank(at, y))
        expected = reciprocal if reciprocal >= 1 / top else 0
        assert found["mrr"][0][group] == pytest.approx(expected, abs=1e-6)
        of_group = auc(scores[rows], labels[rows])
        assert found["gauc"][0][group] == pytest.approx(np.nan if of_group is None else of_group, nan_ok=True)
        assert found["gauc"][1][group] == rows.sum()


def test_equal_scores_count_half_in_aucs_and_stand_behind_others_in_orders() -> None:
    scores, labels = np.zeros(4), np.array([1.0, 0, 0, 0])
    found = group_metrics(scores, labels, np.zeros(4, np.int64), top=3)
    assert found["gauc"][0].tolist() == [0.5]
    assert [found[name][0].tolist() for name in ("hit_rate", "recall", "ndcg", "mrr")] == [[0], [0], [0], [0]]


def test_coverage_counts_different_items_of_first_rows() -> None:
    scores = np.array([0.9, 0.8, 0.1, 0.7, 0.2])
    groups, items = np.array([0, 0, 0, 1, 1]), np.array([7, 8, 9, 7, 9])
    assert coverage(scores, groups, items, top=1) == pytest.approx(1 / 3)
    assert coverage(scores, groups, items, top=2) == 1
