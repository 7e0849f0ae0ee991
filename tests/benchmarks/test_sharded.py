"""The benchmark of sharded training runs, and notices when the two sides do not train the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.trainers.case import TrainingBatch, TrainingCase, batches
from benchmarks.trainers.rounds import OURS, PEER, TrainingDisagreementError, check_agreement
from benchmarks.trainers.sharded import main

pytestmark = pytest.mark.slow

CASE = TrainingCase(sharding_type="table_wise", num_tables=2, num_rows=10, batch_size=4)
WEIGHT = "embedding_bags.table_0.weight@0,0"


class FakeSide:
    """Adds the mean of a batch's gradients to all of its weights."""

    def __init__(self, *, name: str = WEIGHT, output: float = 0.0, rate: float = 1.0) -> None:
        self._name, self._output, self._rate = name, output, rate
        self._weight = torch.zeros(10, 64)

    def step(self, batch: TrainingBatch) -> Tensor:
        output = self._weight.sum() + self._output + torch.ones(1)
        self._weight += self._rate * (1 + batch.gradient.mean())
        return output

    def in_order(self, output: Tensor) -> Tensor:
        return output

    def local_weights(self) -> dict[str, Tensor]:
        return {self._name: self._weight}


def differences(theirs: FakeSide, ours: FakeSide) -> tuple[float, float]:
    data = batches(CASE, 0)
    return check_agreement({PEER: theirs, OURS: ours}, {PEER: data, OURS: data}, CASE)  # type: ignore[dict-item]


def test_sides_that_agree() -> None:
    assert differences(FakeSide(), FakeSide()) == (0, 0)


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        (FakeSide(), FakeSide(output=1.0), "outputs differ by"),
        (FakeSide(), FakeSide(rate=0.999), "weights by 0.00"),
        (FakeSide(), FakeSide(name="embedding_bags.table_1.weight@0,0"), "shards: recsys has"),
        (FakeSide(rate=0), FakeSide(rate=0), "TorchRec did not train"),
    ],
    ids=["outputs", "weights", "shards", "untrained"],
)
def test_sides_that_do_not(theirs: FakeSide, ours: FakeSide, text: str) -> None:
    with pytest.raises(TrainingDisagreementError, match=text):
        differences(theirs, ours)


@pytest.mark.peer
@pytest.mark.parametrize("model", [[], ["--dlrm"]], ids=["tables", "dlrm"])
@pytest.mark.filterwarnings("ignore")
def test_it_runs(report_of: Callable[..., dict[str, Any]], model: list[str]) -> None:
    pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")
    options = ["--quick", "--rounds", "1", "--profile", "--types", "row_wise", "--ids-per-bag", "1-3"]
    report = report_of(main, *options, *model)
    (result,), (bar,) = report["results"], report["bars"]
    assert bar["got"] == result["ratio"]
    assert result["case"]["sharding_type"] == "row_wise"
    assert result["case"]["ids_per_bag"] == [1, 3]
    assert min(result["samples_per_s"], result["peer_samples_per_s"]) > 0
    assert result["ratio_low"] <= result["ratio"] <= result["ratio_high"]
    assert max(result["output_difference"], result["weight_difference"]) <= 1e-5
    assert set(result["profile"]) == {PEER, OURS}
    update = "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu"
    assert update in {share["name"] for share in result["profile"][PEER]}
    assert result["profile"][OURS]
