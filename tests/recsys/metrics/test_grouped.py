"""Metrics of groups: equal scores, and coverage. ``test_published.py`` compares them with torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.metrics.grouped import coverage, group_metrics


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
