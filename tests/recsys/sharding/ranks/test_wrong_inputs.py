"""What cannot be sharded or looked up is refused by every rank before anything is sent, with the reason.

Shape letters: B batch, W world size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from recsys import (
    DataType,
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbOptimType,
    KeyedJaggedTensor,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
)
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, table_wise
from tests.recsys.sharding.ranks.training import group_of, sharders_for
from tests.support.helpers import bag, kjt_of
from tests.support.ranks import RankError, RankPool, live_pool

TABLE = bag("t", 8, 8, ["f", "g"])
GOOD: dict[str, list[list[int]]] = {"f": [[1, 2], []], "g": [[7], [0]]}


def _sharded(
    table: Any = TABLE,
    sharding: ParameterSharding | None = None,
    fused_params: Mapping[str, Any] | None = None,
    weighted: bool = False,
) -> DistributedModelParallel:
    plan = {"t": sharding or table_wise(table, 1)}
    collection = EmbeddingBagCollection([table], is_weighted=weighted)
    env = ShardingEnv.from_process_group(group_of(2), "cpu")
    sharders = sharders_for(fused_params)
    return DistributedModelParallel(collection, env, plan=ShardingPlan(plan={"": plan}), sharders=sharders)


def _kernel(name: str) -> ParameterSharding:
    return table_wise(TABLE, 1).with_kernel(name)


def _planned(plan: Mapping[str, Mapping[str, ParameterSharding]]) -> Any:
    env = ShardingEnv.from_process_group(group_of(2), "cpu")
    return DistributedModelParallel(EmbeddingBagCollection([TABLE]), env, plan=ShardingPlan(plan=plan))


def _looked_up(batch: KeyedJaggedTensor, **settings: Any) -> Any:
    return _sharded(**settings)(batch).values()


def _without_inverse() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["f", "g"], [1, 2, 3], lengths=[1, 1, 1], stride_per_key_per_rank=[[2], [1]])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an ID behind the table": (
        lambda: _looked_up(kjt_of({**GOOD, "f": [[8], []]})),
        "values: feature 'f' got ID 8 at its position 0, expected 0 <= ID < 8",
    ),
    "a negative ID": (
        lambda: _looked_up(kjt_of({**GOOD, "g": [[-1], []]})),
        "values: feature 'g' got ID -1 at its position 0, expected 0 <= ID < 8",
    ),
    "a missing feature": (lambda: _looked_up(kjt_of({"f": [[1]]})), "features: missing ['g'], got ['f']"),
    "no weights": (
        lambda: _looked_up(kjt_of(GOOD), weighted=True),
        "weights: this KeyedJaggedTensor has none",
    ),
    "lengths that lie": (
        lambda: _looked_up(KeyedJaggedTensor(["f", "g"], [1, 2], lengths=[1, 2])),
        "lengths: got a sum of 3 for 2 values",
    ),
    "fractions for IDs": (
        lambda: _looked_up(KeyedJaggedTensor(["f", "g"], torch.ones(2), lengths=[1, 1])),
        "values: got dtype torch.float32, expected int32 or int64",
    ),
    "a batch on another device": (
        lambda: _looked_up(kjt_of(GOOD).to(torch.device("meta"))),
        "features: got a batch on meta, expected host memory",
    ),
    "batch sizes without inverse indices": (
        lambda: _looked_up(_without_inverse()),
        "features: got batch sizes [2, 1] without inverse_indices",
    ),
    "a plan for more ranks": (
        lambda: _sharded(sharding=table_wise(TABLE, 3)),
        "plan['t']: got ranks [3], expected 0 to 1",
    ),
    "a plan without the table": (
        lambda: _planned({"": {}}),
        "plan: missing tables ['t'], unknown tables []; expected ['t']",
    ),
    "a plan without the collection": (lambda: _planned({}), "plan: missing collection '', got []"),
    "a plan of another collection": (
        lambda: _planned({"": {"t": table_wise(TABLE, 0)}, "other": {}}),
        "plan: got unknown collections ['other'], expected ['']",
    ),
    "shards that overlap": (
        lambda: _sharded(
            sharding=ParameterSharding(
                sharding_type="row_wise", shards=table_wise(TABLE, 0).shards + table_wise(TABLE, 1).shards
            )
        ),
        "do not cover the table's 8 × 8 exactly once",
    ),
    "6 columns for the fused kernel": (
        lambda: _sharded(bag("t", 8, 6, ["f"])),
        "table 't': got 6 columns, expected a multiple of 4 for the fused kernel",
    ),
    "a column part of 2": (
        lambda: _sharded(bag("t", 8, 10, ["f"]), column_wise(bag("t", 8, 10, ["f"]), [0])),
        "table 't': got 10 columns, expected a multiple of 4",
    ),
    "Adam": (
        lambda: _sharded(fused_params={"optimizer": EmbOptimType.ADAM}),
        "EmbOptimType.ADAM exists on CUDA only, and the device is cpu",
    ),
    "weight decay": (
        lambda: _sharded(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "weight_decay": 0.1}),
        "fused_params['weight_decay']: got 0.1",
    ),
    "an unknown setting": (lambda: _sharded(fused_params={"lr": 0.1}), "got the unknown keys ['lr']"),
    "BF16": (
        lambda: _sharded(replace(TABLE, data_type=DataType.BF16)),
        "table 't': got BF16 for the fused kernel on cpu, expected FP32 or FP16",
    ),
    "rows in unified memory": (
        lambda: _sharded(sharding=_kernel("fused_uvm")),
        "got compute_kernel 'fused_uvm' on cpu, expected a CUDA device",
    ),
    "a cache on the device": (
        lambda: _sharded(sharding=_kernel("fused_uvm_caching")),
        "got compute_kernel 'fused_uvm_caching' on cpu, expected a CUDA device",
    ),
    "a fused copy on every rank": (
        lambda: _sharded(sharding=data_parallel(TABLE).with_kernel("fused")),
        "plan['t'].compute_kernel: got 'fused' for a data_parallel table, expected 'dense'",
    ),
    "the devices of one process": (
        lambda: DistributedModelParallel(
            EmbeddingBagCollection([TABLE]), ShardingEnv.over_devices(["cpu"] * 2)
        ),
        "env: got 2 ranks without a process group, expected ShardingEnv.from_process_group, or one rank",
    ),
    "a sharder without a process group": (
        lambda: sharders_for()[0].shard(
            EmbeddingBagCollection([TABLE]), {"t": table_wise(TABLE, 0)}, ShardingEnv.from_local(3, 1)
        ),
        "env: got 3 ranks without a process group",
    ),
    "hosts of 3 ranks": (
        lambda: ShardingEnv.from_process_group(group_of(2), "cpu", 3),
        "local_world_size: got 3, expected a divisor of the 2 ranks",
    ),
    "a model without tables": (
        lambda: DistributedModelParallel(nn.Linear(2, 2), plan=ShardingPlan()),
        "model: Linear holds no recsys.EmbeddingBagCollection or recsys.EmbeddingCollection",
    ),
    "another kind of collection": (
        lambda: sharders_for()[0].shard(
            nn.Linear(2, 2), {}, ShardingEnv.from_process_group(group_of(2), "cpu")
        ),
        "module: got Linear, expected an EmbeddingBagCollection or EmbeddingCollection",
    ),
}


def refuse(rank: int, world_size: int, what: str) -> tuple[str, bool]:
    """The message of the ValueError, and whether the ranks still understand each other."""
    message = ""
    try:
        WRONG[what][0]()
    except ValueError as error:
        message = str(error)
    good = _sharded()(kjt_of(GOOD)).values()
    del rank, world_size
    return message, good.shape == (2, 16)


@pytest.mark.parametrize("what", list(WRONG))
def test_every_rank_says_what_is_wrong(what: str) -> None:
    for message, works in live_pool(2).run(refuse, what, timeout_s=60):
        assert WRONG[what][1] in message
        assert works


def look_up_what_one_rank_has_not(rank: int, world_size: int) -> None:
    """Rank 1's batch is wrong; rank 0 waits for it."""
    del world_size
    model = _sharded()
    model(kjt_of({**GOOD, "f": [[8 * rank], []]})).values()


def test_a_rank_that_raises_does_not_leave_the_others_waiting() -> None:
    with RankPool(2) as pool:
        with pytest.raises(RankError, match="rank 1 raised") as caught:
            pool.run(look_up_what_one_rank_has_not, timeout_s=60)
        assert type(caught.value) is RankError
        assert caught.value.rank == 1
        assert not pool.is_usable
