"""Targets of which a device gets nothing to look up, or a call nothing to send, export and trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import table_wise
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import Twice, exported

CUDA_TARGETS = [("cuda:0",), ("cuda:0", "cuda:1"), ("cuda:0", "cuda:1", "cuda:2")]


class _Sequence(nn.Module):
    """One table of single rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.ec(features)["f"].to_padded_dense(3).sum(dim=1)


MODELS = {
    "one table": lambda: EmbeddingBagCollection([bag("t", 20, 8, ["f"])]),
    "one mean table": lambda: EmbeddingBagCollection([bag("t", 20, 8, ["f"], "MEAN")]),
    "one sequence": _Sequence,
    "two calls": Twice,
}


@pytest.mark.parametrize("devices", CUDA_TARGETS, ids=",".join)
@pytest.mark.parametrize("name", MODELS)
def test_a_target_with_idle_devices_exports(tmp_path: Path, name: str, devices: tuple[str, ...]) -> None:
    report, artifact = exported(MODELS[name](), tmp_path / "a", targets=(("cpu",), devices))
    assert set(report.differences) == {"cpu", ",".join(devices)}
    found = [torch.jit.load(str(tmp_path / "a" / t.skeleton)) for t in artifact.manifest.targets]
    assert [[a.name for a in script.forward.schema.arguments][1:] for script in found] == [
        ["lengths", "values"]
    ] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_the_idle_device_may_be_the_first_or_the_last(tmp_path: Path, rank: int) -> None:
    table = bag("t", 20, 8, ["f"])
    plan = ShardingPlan(plan={"": {"t": table_wise(table, rank)}})
    exported(
        EmbeddingBagCollection([table]),
        tmp_path / "a",
        targets=(("cpu", "cpu"), ("cuda:0", "cuda:1")),
        plan=plan,
    )
    torch.jit.load(str(tmp_path / "a" / "target-1.pt"))
