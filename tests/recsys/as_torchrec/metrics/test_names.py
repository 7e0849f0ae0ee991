from __future__ import annotations

import re

from recsys.as_torchrec.metrics.names import (
    MetricName,
    MetricNamespace,
    MetricPrefix,
    compose_metric_key,
    task_wildcard_metrics_pattern,
)


def test_keys_and_their_pattern() -> None:
    key = compose_metric_key(MetricNamespace.NE, "buy", MetricName.LOG_LOSS, MetricPrefix.WINDOW, "@3")
    assert key == "ne-buy|window_logloss@3"
    pattern = task_wildcard_metrics_pattern(MetricNamespace.NE, MetricName.LOG_LOSS, MetricPrefix.WINDOW)
    assert re.match(pattern, key)
    assert not re.match(pattern, "auc-buy|window_logloss")
