from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys.as_torchrec.metrics.config import (
    MetricsConfig,
    RecMetricDef,
    RecMetricEnum,
    RecMetricEnumBase,
    RecTaskInfo,
    StateMetricEnum,
    ThroughputDef,
)
from recsys.as_torchrec.metrics.module import RecMetricModule, StateMetric, generate_metric_module

_TASKS = [
    RecTaskInfo(name="click", label_name="l", prediction_name="p", weight_name="w"),
    RecTaskInfo(name="buy", label_name="l2", prediction_name="p2", weight_name="w"),
]
_OUTPUTS = {name: torch.tensor([[1.0], [0.0]]) for name in ("l", "p", "l2", "p2")} | {"w": torch.ones(2)}


class Rate(StateMetric):
    def get_metrics(self) -> dict[str, Any]:
        return {"lr": 0.5}


def _module(steps: int = 100, **options: Any) -> RecMetricModule:
    every = RecMetricDef(rec_task_indices=[0, 1], window_size=10)
    config = MetricsConfig(
        rec_tasks=_TASKS,
        rec_metrics={
            **dict.fromkeys(RecMetricEnum, every),
            RecMetricEnum.CTR: RecMetricDef(rec_tasks=_TASKS[:1]),
        },
        throughput_metric=ThroughputDef(window_size=10, warmup_steps=1),
        state_metrics=[StateMetricEnum.OPTIMIZERS],
        compute_interval_steps=steps,
        **options,
    )
    return _generated(config)


def _generated(config: MetricsConfig) -> RecMetricModule:
    return generate_metric_module(
        metric_class=RecMetricModule,
        metrics_config=config,
        batch_size=2,
        world_size=1,
        my_rank=0,
        state_metrics_mapping={StateMetricEnum.OPTIMIZERS: Rate()},
        device=torch.device("cpu"),
    )


def test_from_outputs_to_numbers() -> None:
    module = _module(steps=2)
    due = []
    for _ in range(4):
        module.update(_OUTPUTS)
        due.append(module.should_compute())
    assert due == [False, True, False, True]
    numbers = module.compute()
    assert numbers["optimizers-optimizers|lr"] == 0.5
    assert numbers["ctr-click|window_ctr"].item() == 0.5
    assert "ctr-buy|window_ctr" not in numbers
    assert numbers["auc-buy|window_auc"].item() == 1.0
    assert numbers["mse-buy|lifetime_mse"].item() == 0.0
    assert numbers["throughput-throughput|total_examples"].item() == 8
    assert numbers.is_resolved()
    seen: list[Any] = []
    numbers.subscribe(seen.append)
    assert seen == [numbers.resolve()]


def test_the_numbers_go_on_after_a_restart() -> None:
    first, second = _module(), _module()
    first.update(_OUTPUTS)
    second.load_state_dict(first.state_dict())
    second.update({**_OUTPUTS, "l": torch.ones(2, 1)})
    assert second.compute()["calibration-click|lifetime_calibration"].item() == pytest.approx(2 / 3)


def test_intervals_are_adjusted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("recsys.as_torchrec.metrics.module.time.monotonic", lambda: now)
    for least, most, expected in ((30.0, float("inf"), 62), (0.0, 5.0, 8), (6.0, 14.0, 20), (1.0, 20.0, 20)):
        module = _module(steps=20, min_compute_interval=least, max_compute_interval=most)
        for _ in range(3):
            module.compute()
            now += 10.0
        assert module.compute_interval_steps == expected


class Others(RecMetricEnumBase):
    MINE = "mine"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"rec_metrics": {Others.MINE: RecMetricDef(rec_tasks=_TASKS)}},
            "rec_metrics: got mine, expected some of",
        ),
        ({"rec_metrics": {RecMetricEnum.NE: RecMetricDef()}}, r"rec_metrics\[ne\]: got rec_tasks and"),
        (
            {"rec_metrics": {RecMetricEnum.NE: RecMetricDef(rec_task_indices=[2])}},
            r"got \[2\], expected .* below 0",
        ),
    ],
)
def test_configs_that_do_not_fit(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _generated(MetricsConfig(**config))


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"l": torch.ones(2)}, r"task 'click': got no model output \['p', 'w'\]"),
        ({**_OUTPUTS, "p": torch.ones(3)}, r"task 'click': got outputs of shapes .*'p': \(3,\)"),
    ],
)
def test_outputs_that_do_not_fit(outputs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _module().update(outputs)
