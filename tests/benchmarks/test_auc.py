"""The comparison of AUC before and after the export."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.auc import EQUAL, TOLERANCE, AucResult, bars_of, compare_auc
from recsys.train.commands.sources import DataConfig


def test_every_artifact_is_compared_with_the_float_model(tmp_path: Path) -> None:
    found = compare_auc(DataConfig(name="synthetic", limit_rows=3000), tmp_path)
    names = list(found.by_model)
    assert {"artifact, float32", "artifact, bfloat16"} < set(names)
    before = found.by_model[names[0]]
    assert 0.4 < before < 1
    assert found.by_model["artifact, float32"] == pytest.approx(before, abs=10 * TOLERANCE)


def test_artifacts_are_held_to_that_of_torchs_float32_operators() -> None:
    by_model = {
        "float model": 0.9,
        "artifact, float32": 0.8,
        "artifact, own float32": 0.80001,
        "artifact, bfloat16": 0.7,
    }
    result = AucResult(data="d", num_held_out_rows=9, by_model={**by_model, "artifact, own int8": 0.8004})
    exact, rounded = bars_of(result)
    assert (exact.bar, exact.is_met) == (EQUAL, False)
    assert (rounded.bar, rounded.is_met) == (TOLERANCE, True)
