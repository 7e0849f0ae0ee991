from __future__ import annotations

import pytest

from recsys.as_torchrec.metrics.config import (
    BatchSizeStage,
    DefaultMetricsConfig,
    RecComputeMode,
    RecMetricEnum,
    validate_batch_size_stages,
)


def test_the_default_is_ne_and_throughput() -> None:
    assert list(DefaultMetricsConfig.rec_metrics) == [RecMetricEnum.NE]
    assert str(RecMetricEnum.NE) == "ne"
    assert DefaultMetricsConfig.throughput_metric is not None
    assert [mode.is_fused for mode in RecComputeMode] == [True, False, True]


def test_only_the_last_stage_has_no_end() -> None:
    validate_batch_size_stages(None)
    validate_batch_size_stages([BatchSizeStage(8, 3), BatchSizeStage(16, None)])
    with pytest.raises(ValueError, match="batch_size_stages: got max_iters 3 of the last one, expected None"):
        validate_batch_size_stages([BatchSizeStage(8, 3)])
