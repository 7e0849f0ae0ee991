"""Learning rates that change, clipped and accumulated gradients, bfloat16, and the same bits from the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.data.batches import batches
from recsys.data.examples import LabeledBatch
from recsys.data.sources.synthetic import synthetic
from recsys.kernels.training import FusedLookup
from recsys.train import fit
from recsys.train.commands.train import main
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.stepping.ranks import ONE_RANK, process_group
from recsys.train.stepping.trainer import Trainer

_SMALL = ModelConfig(embedding_dim=4, dense_layers=(8,), over_layers=(8,))
_NUM_ROWS = 60


def _factors(num: int, epochs: int = 2, **schedule: Any) -> tuple[list[float], list[float]]:
    rates = TrainConfig(**schedule).rates(0, epochs, steps_per_epoch=4)
    dense, rows = zip(*islice(rates, num), strict=True)
    return list(dense), list(rows)


def test_rates_rise_and_fall_as_configured() -> None:
    dense, rows = _factors(5, warmup_steps=4)
    assert dense == rows == [0.25, 0.5, 0.75, 1, 1]
    dense, rows = _factors(5, schedule="step", row_schedule="constant", decay_steps=2, decay_factor=0.5)
    assert dense == [1, 1, 0.5, 0.5, 0.25]
    assert rows == [1] * 5
    assert _factors(9, schedule="step")[0] == pytest.approx([1] * 4 + [0.1] * 4 + [0.01])
    dense, rows = _factors(9, schedule="cosine", warmup_steps=2, row_warmup_steps=0, decay_factor=0.2)
    assert dense[:3] == [0.5, 1, 1]
    assert dense[5] == pytest.approx(0.6)  # half of the 6 steps after the warm-up
    assert rows[0] == 1
    assert rows[4] == pytest.approx(0.6)
    assert 0.2 < dense[8] == dense[7] < dense[6]  # one more step than an epoch is said to have
    assert _factors(9, schedule="cosine")[0][8] > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"schedule": "linear"}, "schedule: got 'linear', expected one of constant, cosine, step"),
        ({"row_schedule": ""}, "row_schedule: got ''"),
        ({"decay_steps": 4}, "decay_steps: got 4 with constant rates"),
        ({"schedule": "step", "decay_factor": 0.0}, "decay_factor: got 0 with the schedule step"),
        ({"schedule": "cosine", "decay_factor": 1.5}, "decay_factor: got 1.5, expected a share"),
        ({"warmup_steps": -1}, "warmup_steps: got -1, expected at least 0"),
        ({"accumulate": 0}, "accumulate: got 0, expected at least 1"),
        ({"clip_norm": float("nan")}, "clip_norm: got nan, expected a number above 0"),
        ({"row_clip_value": 0.0}, "row_clip_value: got 0.0"),
        ({"mixed_precision": "float16"}, "mixed_precision: got 'float16', expected one of none, bfloat16"),
    ],
)
def test_a_wrong_schedule_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(")):
        TrainConfig(**wrong)


def _batches(batch_size: int) -> Iterator[LabeledBatch]:
    return batches(synthetic(_NUM_ROWS).train(), batch_size)


def _train(config: TrainConfig, num_steps: int) -> Trainer:
    """Train so many batches."""
    trainer = Trainer(_SMALL.factory, _SMALL.arguments(synthetic(_NUM_ROWS)), config, ONE_RANK)
    ahead = islice(_batches(config.batch_size), num_steps)
    for _ in trainer.steps(ahead, config.rates(0, 1, num_steps)):
        pass
    return trainer


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    found = trainer.whole_state_dict()
    assert found is not None
    return found


def _of_dense(trainer: Trainer) -> dict[str, Tensor]:
    return {name: w for name, w in _weights(trainer).items() if "embedding_bags" not in name}


def test_rates_reach_both_kinds_of_optimizers() -> None:
    config = TrainConfig(batch_size=8, schedule="step", decay_steps=1, row_schedule="constant")
    with process_group(ONE_RANK):
        trainer = Trainer(_SMALL.factory, _SMALL.arguments(synthetic(_NUM_ROWS)), config, ONE_RANK)
        lookups = [part for part in trainer.model.modules() if isinstance(part, FusedLookup)]
        seen = []
        for _ in trainer.steps(islice(_batches(8), 3), iter([(1.0, 0.5), (0.1, 0.25), (0.01, 0.1), (0, 0)])):
            rates = {group["lr"] for group in trainer.optimizer.param_groups}
            of_lookups = {float(lookup.tbe.get_learning_rate()) for lookup in lookups}
            seen.append((sorted(rates), sorted(of_lookups)))
    assert [rates for rates, _ in seen] == [
        pytest.approx([1e-3, 0.025]),
        pytest.approx([1e-4, 0.0125]),
        pytest.approx([1e-5, 0.005]),
    ]
    assert [rates for _, rates in seen] == [[pytest.approx(rate)] for rate in (0.025, 0.0125, 0.005)]


def test_accumulated_batches_step_like_one_larger_batch() -> None:
    # Tables that hardly move, so that the second batch meets the rows of the first.
    config = TrainConfig(batch_size=16, row_learning_rate=1e-12, clip_norm=1.0)
    with process_group(ONE_RANK):
        expected = _of_dense(_train(config, 2))
        found = _of_dense(_train(replace(config, batch_size=8, accumulate=2), 4))
        left = _train(replace(config, batch_size=8, accumulate=3), 4)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)
    assert not left.optimizer.is_waiting  # the fourth batch made a step of its own


def _row_states(trainer: Trainer) -> Tensor:
    lookups = [part for part in trainer.model.modules() if isinstance(part, FusedLookup)]
    return torch.cat([state["momentum1"] for lookup in lookups for state in lookup.states()])


def test_gradients_are_clipped() -> None:
    config = TrainConfig(batch_size=8, optimizer="adagrad", clip_norm=1e-3, row_clip_value=1e-5)
    with process_group(ONE_RANK):
        trainer = _train(config, 1)
        sums = [state["sum"].sum() for state in trainer.optimizer.state.values() if "sum" in state]
        rows, unclipped = _row_states(trainer), _row_states(_train(TrainConfig(batch_size=8), 1))
    assert torch.stack(sums).sum().sqrt().item() == pytest.approx(1e-3, rel=1e-4)
    # Of each looked-up vector; a row sums those of the batch.
    most = (8 * 1e-5) ** 2
    assert 0 < rows.max().item() <= most < unclipped.max().item()


def test_tables_with_gradients_are_not_clipped() -> None:
    config, model = TrainConfig(row_clip_value=1e-4), replace(_SMALL, embedding_dim=5)
    with (
        process_group(ONE_RANK),
        pytest.raises(ValueError, match=r"^row_clip_value: got 0.0001 with the table"),
    ):
        Trainer(model.factory, model.arguments(synthetic(_NUM_ROWS)), config, ONE_RANK)


def test_bfloat16_trains_float32_weights() -> None:
    config = TrainConfig(batch_size=8, mixed_precision="bfloat16")
    with process_group(ONE_RANK):  # tested in host memory; the commands refuse it there
        found, expected = _weights(_train(config, 3)), _weights(_train(TrainConfig(batch_size=8), 3))
    assert all(weight.dtype == expected[name].dtype for name, weight in found.items())
    differs = [name for name, weight in found.items() if not torch.equal(weight, expected[name])]
    assert differs
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=0.1, atol=0.02)


def test_bfloat16_is_refused_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--data", "synthetic", "--mixed-precision", "bfloat16", "--out", str(tmp_path / "model.pt")]
    assert main(argv) == 2
    assert "mixed_precision: got 'bfloat16' on cpu, expected none, or a GPU" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^mixed_precision: got 'bfloat16' on cpu"):
        fit(synthetic(_NUM_ROWS), mixed_precision="bfloat16", callbacks=[])


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    argv = ["--data", "synthetic", "--limit-rows", "600", "--batch-size", "64", "--embedding-dim", "4"]
    argv += [
        "--schedule",
        "cosine",
        "--warmup-steps",
        "3",
        "--accumulate",
        "2",
        "--clip-norm",
        "0.5",
        "--json",
    ]
    for name, seed in (("a.pt", "3"), ("b.pt", "3"), ("c.pt", "4")):
        assert main([*argv, "--seed", seed, "--out", str(tmp_path / name)]) == 0
    first, again, other = ((tmp_path / f"{name}.pt").read_bytes() for name in "abc")
    assert first == again
    assert first != other
