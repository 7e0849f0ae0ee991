"""What each rank does with a case, and how its results are compared.

Shape letters: W world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys import (
    CommsConfig,
    DistributedModelParallel,
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    ShardingEnv,
    ShardingPlan,
    in_backward_optimizer_filter,
)
from tests.recsys.sharding.ranks.cases import RankCase, named_outputs
from tests.recsys.sharding.ranks.oracle import OPTIMIZERS, Expected, train_whole
from tests.support.ranks import live_pool


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a table on some rank."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tensor: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """The same part of a whole table."""
        return whole[tuple(slice(o, o + s) for o, s in zip(self.offsets, self.sizes, strict=True))]


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What a rank found.

    Attributes:
        outputs: for each step, by name.
        weights: name in the state dict -> its shards; of a table that all ranks hold one, the whole.
        states: parameter -> state of the fused optimizer -> its shards.
    """

    outputs: list[dict[str, Tensor]]
    weights: dict[str, list[Shard]]
    states: dict[str, dict[str, list[Shard]]]


def sharders_for(
    fused_params: Mapping[str, Any] | None = None, comms: CommsConfig | None = None
) -> list[Any]:
    """Both, with the same settings."""
    return [
        EmbeddingBagCollectionSharder(fused_params, comms=comms),
        EmbeddingCollectionSharder(fused_params, comms=comms),
    ]


def group_of(world_size: int, backend: str = "gloo") -> distributed.ProcessGroup:
    """All ranks, or one of a group that each has for itself, made when it is first asked for."""
    if world_size == distributed.get_world_size():
        return distributed.group.WORLD
    assert world_size == 1
    if backend not in _alone:
        groups = [
            distributed.new_group([rank], backend=backend) for rank in range(distributed.get_world_size())
        ]
        _alone[backend] = groups[distributed.get_rank()]
    return _alone[backend]


_alone: dict[str, distributed.ProcessGroup] = {}


def sharded(case: RankCase, optimizer: str = "sgd", **settings: Any) -> DistributedModelParallel:
    """The case's collection over all ranks."""
    device = settings.pop("device", "cpu")
    group = group_of(case.draw.world_size, settings.pop("backend", "gloo"))
    env = ShardingEnv.from_process_group(group, device, case.local_world_size)
    return DistributedModelParallel(
        case.collection(),
        env=env,
        plan=ShardingPlan(plan={"": case.plan}),
        sharders=sharders_for(OPTIMIZERS[optimizer].fused_params(), **settings),
    )


def shards_of(tensor: Tensor | ShardedTensor) -> list[Shard]:
    """This rank's, copied."""
    if isinstance(tensor, ShardedTensor):
        return [
            Shard(
                offsets=tuple(s.metadata.shard_offsets),
                sizes=tuple(s.metadata.shard_sizes),
                tensor=s.tensor.detach().cpu().clone(),
            )
            for s in tensor.local_shards()
        ]
    sizes = tuple(tensor.shape)
    return [Shard(offsets=(0,) * len(sizes), sizes=sizes, tensor=tensor.detach().cpu().clone())]


def train_sharded(rank: int, world_size: int, case: RankCase, optimizer: str, settings: Any) -> RankResult:
    """All steps of a case on one rank; where the case has one rank, on each for itself."""
    if case.draw.world_size < world_size:
        rank = 0
    model = sharded(case, optimizer, **settings)
    dense = [p for _, p in in_backward_optimizer_filter(model.named_parameters())]
    for_dense = OPTIMIZERS[optimizer].dense(dense) if dense else None
    outputs = []
    for step in range(len(case.batch_sizes)):
        if for_dense is not None:
            for_dense.zero_grad()
        found = {name: o.cpu() for name, o in named_outputs(model(case.batch_to_shard(step, rank))).items()}
        case.loss(found, step, rank).backward()
        if for_dense is not None:
            for_dense.step()
        outputs.append({name: output.detach() for name, output in found.items()})
    return RankResult(
        outputs=outputs,
        weights={name: shards_of(tensor) for name, tensor in model.state_dict().items()},
        states={
            name: {state: shards_of(tensor) for state, tensor in states.items()}
            for name, states in model.fused_optimizer.state_dict()["state"].items()
        },
    )


def check_case(case: RankCase, optimizer: str = "sgd", **settings: Any) -> tuple[Expected, list[RankResult]]:
    """Train it on ranks and whole, and compare outputs and weights."""
    results = live_pool(max(2, case.draw.world_size)).run(train_sharded, case, optimizer, settings)
    expected = train_whole(case, OPTIMIZERS[optimizer])
    if case.draw.world_size == 1:
        results = results[1:]  # rank 0 of its group and 1 of the world
    for rank, result in enumerate(results):
        for step, found in enumerate(result.outputs):
            wanted = expected.outputs[step][rank]
            assert list(found) == list(wanted)
            for name, output in found.items():
                atol = expected.output_atol[step]
                torch.testing.assert_close(output, wanted[name], rtol=0, atol=atol, msg=_at(name, step, rank))
    check_weights(case, expected, results)
    return expected, results


def check_weights(case: RankCase, expected: Expected, results: list[RankResult]) -> None:
    """Every shard has the oracle's numbers, every number of a table has one shard, copies are equal."""
    container = "embeddings" if case.draw.sequence else "embedding_bags"
    for table in case.tables:
        name = f"{container}.{table.name}.weight"
        whole, atol = expected.weights[table.name]
        by_rank = [result.weights[name] for result in results]
        seen = torch.zeros(whole.shape, dtype=torch.int64)
        for rank, shards in enumerate(by_rank):
            for shard in shards:
                shard.of(seen).add_(1)
                torch.testing.assert_close(
                    shard.tensor.float(), shard.of(whole), rtol=0, atol=atol, msg=_at(name, "the last", rank)
                )
        if case.plan[table.name].is_replicated:
            assert all(torch.equal(shards[0].tensor, by_rank[0][0].tensor) for shards in by_rank)
        else:
            assert bool((seen == 1).all()), name


def _at(name: str, step: int | str, rank: int) -> Any:
    return lambda text: f"{name}, step {step}, rank {rank}: {text}"
