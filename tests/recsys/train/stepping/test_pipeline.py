"""The pipeline trains what plain steps train, with the next batch on its way, and knows what it cannot send ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.model_parallel import DistributedModelParallel
from recsys.optim import CombinedOptimizer, EmbOptimType, KeyedOptimizerWrapper
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, row_wise, table_wise
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from recsys.train.stepping.pipeline import TrainPipelineSparseDist
from recsys.train.stepping.ranks import whole_state_dict
from tests.support.helpers import bag
from tests.support.ranks import live_pool

_TABLES = [
    bag("a", 11, 16, ["f", "g"]),
    bag("b", 7, 16, ["h"], "MEAN"),
    bag("c", 5, 16, ["f"]),
    bag("d", 3, 16, ["h"]),
]
_KEYS = ["f", "g", "h"]
_ROWS = {"f": 5, "g": 11, "h": 3}  # every ID is below the rows of each of the feature's tables


@dataclass(frozen=True)
class _Batch:
    dense: Tensor
    features: KeyedJaggedTensor
    label: Tensor

    def to(self, device: torch.device, *, non_blocking: bool = False) -> _Batch:
        return _Batch(self.dense.to(device, non_blocking=non_blocking), self.features, self.label.to(device))


class _Model(nn.Module):
    """Looks up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(tables=_TABLES)
        self.over = nn.Linear(2 + 16 * 5, 1)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        pooled = self.tables(self.given(batch)).values()
        logits = self.over(torch.cat((batch.dense, pooled), dim=1)).squeeze(1)
        return (logits - batch.label).square().sum(), logits.detach()

    def given(self, batch: Any) -> KeyedJaggedTensor:
        return batch.features


class _Changes(_Model):
    """Looks up what it makes of the features."""

    def given(self, batch: Any) -> KeyedJaggedTensor:
        return batch.features.permute([2, 0, 1])


class _Twice(_Model):
    """Calls its collection twice in a step, with the batch's features and with others."""

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        loss, logits = super().forward(batch)
        more = self.tables(batch.features.permute([1, 2, 0])).values().square().sum()
        return loss + 0.1 * more, logits


_MODELS = {"plain": _Model, "changes": _Changes, "twice": _Twice}


def _batches(rank: int, sizes: list[int]) -> Iterator[_Batch]:
    generator = torch.Generator().manual_seed(rank)
    for size in sizes:
        lengths = torch.randint(4, (len(_KEYS) * size,), generator=generator)
        values = [
            torch.randint(_ROWS[key], (int(part.sum()),), generator=generator)
            for key, part in zip(_KEYS, lengths.view(len(_KEYS), size), strict=True)
        ]
        yield _Batch(
            torch.randn(size, 2, generator=generator),
            KeyedJaggedTensor(_KEYS, torch.cat(values), lengths=lengths, stride=size),
            torch.randn(size, generator=generator),
        )


def _made(kind: str, world_size: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    ranks = list(range(world_size))
    plan = {
        "a": row_wise(_TABLES[0], ranks),
        "b": column_wise(_TABLES[1], ranks),
        "c": table_wise(_TABLES[2], world_size - 1),
        "d": data_parallel(_TABLES[3]),
    }
    sharder = EmbeddingBagCollectionSharder(
        {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
    )
    torch.manual_seed(0)
    with torch.device("meta"):
        module = _MODELS[kind]()
    model = DistributedModelParallel(module, plan=ShardingPlan(plan={"tables": plan}), sharders=[sharder])
    rest = {
        name: parameter
        for name, parameter in model.named_parameters()
        if "embedding_bags" not in name or ".d." in name
    }
    return model, CombinedOptimizer(
        [model.fused_optimizer, KeyedOptimizerWrapper(rest, lambda params: torch.optim.SGD(params, lr=0.05))]
    )


def _sizes(rank: int) -> list[int]:
    return [4, 6, 4, 3, 4] if rank == 0 else [4, 2, 5, 0, 4]


def _train(rank: int, world_size: int, kind: str) -> tuple[Any, Any, int]:
    """Weights after plain steps and after pipelined ones, and how many collections were pipelined."""
    plain, optimizer = _made(kind, world_size)
    for batch in _batches(rank, _sizes(rank)):
        optimizer.zero_grad()
        loss, _ = plain(batch)
        loss.backward()
        optimizer.step()
    expected = whole_state_dict(plain)

    model, optimizer = _made(kind, world_size)
    pipeline: TrainPipelineSparseDist[_Batch, Any] = TrainPipelineSparseDist(
        model, optimizer, torch.device("cpu")
    )
    assert pipeline.num_pipelined == 0
    batches = _batches(rank, _sizes(rank))
    for size in _sizes(rank):
        assert len(pipeline.progress(batches)) == size
    with pytest.raises(StopIteration):
        pipeline.progress(batches)
    return expected, whole_state_dict(model), pipeline.num_pipelined


@pytest.mark.parametrize(("kind", "num_pipelined"), [("plain", 1), ("changes", 0), ("twice", 0)])
def test_pipelined_steps_are_plain_steps(kind: str, num_pipelined: int) -> None:
    results = live_pool(2).run(_train, kind)
    expected, found, *_ = results[0]
    assert set(found) == set(expected)
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert [result[2] for result in results] == [num_pipelined] * 2
    assert results[1][0] is None  # rank 0 alone holds the whole model


def _order(rank: int, world_size: int) -> list[str]:
    """What happens in three steps: S sizes are sent, I IDs go and arrive, F forward, O the optimizer's step."""
    model, optimizer = _made("plain", world_size)
    pipeline: TrainPipelineSparseDist[_Batch, Any] = TrainPipelineSparseDist(
        model, optimizer, torch.device("cpu")
    )
    events: list[str] = []
    (sharded,) = model.sharded_modules().values()

    def spied(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            events.append(name)
            return function(*args, **kwargs)

        return call

    sharded.input_dist = spied("S", sharded.input_dist)  # type: ignore[method-assign]
    sharded.lookup = spied("F", sharded.lookup)  # type: ignore[method-assign]
    optimizer.step = spied("O", optimizer.step)  # type: ignore[method-assign]
    send = pipeline._send_ids
    pipeline._send_ids = spied("I", send)  # type: ignore[method-assign]
    batches = _batches(rank, [3, 3, 3])
    for _ in range(3):
        pipeline.progress(batches)
    return events


def test_the_next_batch_leaves_before_this_one_is_done() -> None:
    # The first step learns what can be sent ahead, so its own sizes go in its forward pass. From then on: the sizes of
    # the next batch, forward, the next batch's IDs, and only then the optimizer's step.
    first, second, third = ["I", "S", "F", "S", "I", "O"], ["S", "F", "I", "O"], ["F", "O"]
    assert live_pool(2).run(_order) == [first + second + third] * 2


def _evaluate(rank: int, world_size: int) -> bool:
    model, optimizer = _made("plain", world_size)
    before = whole_state_dict(model)
    pipeline: TrainPipelineSparseDist[_Batch, Any] = TrainPipelineSparseDist(
        model, optimizer, torch.device("cpu")
    )
    model.eval()
    batches, again = _batches(rank, [4, 2]), _batches(rank, [4, 2])
    with torch.no_grad():
        for batch in again:
            assert torch.equal(pipeline.progress(batches), model(batch)[1])
    after = whole_state_dict(model)
    return before is None or all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_in_eval_mode_it_only_looks() -> None:
    assert live_pool(2).run(_evaluate) == [True, True]


class _OfFeatures(nn.Module):
    """A model whose batch is the features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(tables=_TABLES)
        self.were_sent: list[bool] = []

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        self.were_sent.append(isinstance(features, DistributedKeyedJaggedTensor))
        pooled = self.tables(features).values()
        return pooled.sum(), pooled.detach()


def _of_features(rank: int, world_size: int) -> list[bool]:
    sharder = EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.EXACT_SGD})
    module = _OfFeatures()
    plan = {table.name: table_wise(table, i % world_size) for i, table in enumerate(_TABLES)}
    model = DistributedModelParallel(module, plan=ShardingPlan(plan={"tables": plan}), sharders=[sharder])
    pipeline: TrainPipelineSparseDist[KeyedJaggedTensor, Any] = TrainPipelineSparseDist(
        model, model.fused_optimizer, torch.device("cpu")
    )
    batches = (batch.features for batch in _batches(rank, [2, 3, 4]))
    assert [len(pipeline.progress(batches)) for _ in range(3)] == [2, 3, 4]
    assert any(isinstance(part, ShardedCollection) for part in model.modules())
    dist.barrier()
    return module.were_sent


def test_a_batch_may_be_the_features_themselves() -> None:
    assert live_pool(2).run(_of_features) == [[False, True, True]] * 2
