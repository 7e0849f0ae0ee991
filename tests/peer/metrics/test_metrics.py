"""The metrics against TorchRec's, batch for batch, over one config."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys.as_torchrec.metrics import config as ours_config
from recsys.as_torchrec.metrics import module as ours_module

theirs_module = pytest.importorskip("torchrec.metrics.metric_module", reason="torchrec is not installed")
theirs_config = pytest.importorskip("torchrec.metrics.metrics_config")
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::FutureWarning")]

_NAMES = ("NE", "CTR", "CALIBRATION", "MSE", "AUC")


def _module(config: Any, module: Any, mode: str, **options: Any) -> Any:
    tasks = [
        config.RecTaskInfo(name=name, label_name=f"{name}_l", prediction_name=f"{name}_p", weight_name="w")
        for name in ("click", "buy")
    ]
    metrics = {}
    for name in _NAMES:
        arguments = {"NE": {"include_logloss": True}, "MSE": {"include_r_squared": True}}.get(name, {})
        metrics[config.RecMetricEnum[name]] = config.RecMetricDef(
            rec_tasks=tasks, window_size=40, arguments=dict(arguments)
        )
    return module.generate_metric_module(
        metric_class=module.RecMetricModule,
        metrics_config=config.MetricsConfig(
            rec_tasks=tasks,
            rec_metrics=metrics,
            throughput_metric=config.ThroughputDef(window_size=10, warmup_steps=2),
            rec_compute_mode=config.RecComputeMode[mode],
            **options,
        ),
        batch_size=16,
        world_size=1,
        my_rank=0,
        state_metrics_mapping={},
        device=torch.device("cpu"),
    )


def _outputs(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    outputs = {"w": torch.rand(16, generator=generator)}
    for name in ("click", "buy"):
        outputs[f"{name}_p"] = torch.rand(16, 1, generator=generator)
        outputs[f"{name}_l"] = torch.randint(0, 2, (16, 1), generator=generator).float()
    return outputs


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("UNFUSED_TASKS_COMPUTATION", {}),
        ("UNFUSED_TASKS_COMPUTATION", {"fused_update_limit": 2}),
        ("UNFUSED_TASKS_COMPUTATION", {"should_validate_update": True, "should_clone_update_inputs": True}),
        ("FUSED_TASKS_COMPUTATION", {}),
    ],
    ids=["apart", "collected", "validated", "at-once"],
)
def test_the_same_numbers_by_the_same_keys(mode: str, options: dict[str, Any]) -> None:
    ours = _module(ours_config, ours_module, mode, **options)
    theirs = _module(theirs_config, theirs_module, mode, **options)
    for step in range(5):
        for module in (ours, theirs):
            module.update(_outputs(step))
        found, expected = ours.compute(), theirs.compute()
        timed = {key for key in expected if "throughput|" in key and "examples" not in key}
        assert sorted(found) == sorted(expected)
        for key in expected.keys() - timed:
            torch.testing.assert_close(
                found[key], expected[key], rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
            )
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    assert ours.should_compute() == theirs.should_compute()


def test_their_states_load() -> None:
    ours = _module(ours_config, ours_module, "UNFUSED_TASKS_COMPUTATION")
    theirs = _module(theirs_config, theirs_module, "UNFUSED_TASKS_COMPUTATION")
    for step in range(3):
        theirs.update(_outputs(step))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for module in (ours, theirs):
        module.update(_outputs(3))
    found, expected = ours.compute(), theirs.compute()
    lifetime = [key for key in expected if "lifetime" in key and "throughput" not in key]
    assert lifetime
    for key in lifetime:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-6, atol=0)
