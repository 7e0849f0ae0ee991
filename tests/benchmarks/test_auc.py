"""The comparison of AUC before and after the export."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.auc import TOLERANCE, compare_auc
from recsys.train.sources import DataConfig


def test_every_artifact_is_compared_with_the_float_model(tmp_path: Path) -> None:
    found = compare_auc(DataConfig(name="synthetic", limit_rows=3000), tmp_path)
    names = list(found.by_model)
    assert {"artifact, float32", "artifact, bfloat16"} < set(names)
    before = found.by_model[names[0]]
    assert 0.4 < before < 1
    assert found.by_model["artifact, float32"] == pytest.approx(before, abs=10 * TOLERANCE)
