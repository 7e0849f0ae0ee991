"""Sharded training, step by step: what TorchRec's introduction shows from "Distributed Training and Sharding" on.

Run it with

    python examples/tutorial.py
    python examples/tutorial.py --world-size 2

It starts its ranks itself, on the CPU, over gloo. Every rank takes every step; rank 0 prints.

Shape letters: B batch, D embedding dim, R rows, W world size.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingBagConfig,
    EmbeddingShardingPlanner,
    EmbOptimType,
    KeyedJaggedTensor,
    KeyedTensor,
    LazyAwaitable,
    ParameterSharding,
    ShardedEmbeddingBagCollection,
    ShardingEnv,
    ShardingPlan,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)


def tutorial(rank: int) -> dict[str, Any]:
    """Take all steps on this rank, with ``torch.distributed`` initialized.

    Returns:
        What the steps show, by name.
    """
    shown: dict[str, Any] = {}

    def show(name: str, value: Any) -> None:
        shown[name] = value
        if rank == 0:
            print(f"\n{name}:\n{value}", flush=True)

    # 1. Ranks. Each is a process with its own batch; together they hold one copy of the tables.
    group = dist.group.WORLD
    assert group is not None
    env = ShardingEnv.from_process_group(group)
    show("environment", f"{dist.get_backend(group)}, world size {env.world_size}, {env.device}")

    # 2. Tables: two of R = 4096 rows and D = 64 columns, and a batch of B = 2. Shards are cut from each rank's own
    #    copy, so the copies must be equal. (Tables on the meta device are made shard by shard instead.)
    torch.manual_seed(0)
    ebc = EmbeddingBagCollection(device="cpu", tables=[table("product"), table("user")])
    kjt = batch(rank)
    show("weights", {name: list(weight.shape) for name, weight in ebc.state_dict().items()})
    show("batch of rank 0", kjt)

    # 3. A plan: which part of which table lies on which rank. It is the same on all ranks.
    sharder = EmbeddingBagCollectionSharder()
    show("sharding types", sharder.sharding_types("cpu"))
    plan = EmbeddingShardingPlanner().collective_plan(ebc, [sharder], group)
    show("sharding plan", plan_text(plan))

    # 4. The sharded module takes the place of the other one.
    tables = plan.of("")
    sharded_ebc = sharder.shard(ebc, tables, env)
    show("sharded module", type(sharded_ebc).__name__)

    # 5. Results that are on their way. Whatever needs one waits for it; torch's functions do so too.
    ones: Any = LazyAwaitable(lambda: torch.ones(3, 2))
    show("sum of a LazyAwaitable", torch.sum(ones).item())

    # 6. The forward pass: a LazyAwaitable of what the unsharded module would give.
    output = sharded_ebc(kjt)
    show("output", type(output).__name__)
    result: KeyedTensor = output.wait()
    show("result keys", result.keys())
    show("result", {key: list(values.shape) for key, values in result.to_dict().items()})
    show("as unsharded", bool(torch.allclose(result.values(), ebc(kjt).values())))
    show("step by step", bool(torch.equal(result.values(), steps(sharded_ebc, kjt).values())))

    # 7. The same for a whole model: every collection in it is planned and sharded, the rest is replicated.
    model = DistributedModelParallel(ebc)
    show("model", [type(model).__name__, type(model.module).__name__])
    show("model's result", list(model(kjt).values().shape))

    # 8. An optimizer, first way: all tables of a sharder. Tables are updated in the backward pass, so no gradient
    #    of a table's size is ever made.
    fused_params = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.02, "eps": 0.002}
    with_fused_params = EmbeddingBagCollectionSharder(fused_params=fused_params).shard(ebc, tables, env)
    show("default optimizer", sharded_ebc.fused_optimizer)
    show("optimizer of fused_params", with_fused_params.fused_optimizer)

    # 9. Second way: marks on parameters, before they are sharded.
    marked = copy.deepcopy(ebc)
    apply_optimizer_in_backward(torch.optim.SGD, marked.parameters(), {"lr": 0.5})
    with_marks = sharder.shard(marked, tables, env)
    show("optimizer of marks", with_marks.fused_optimizer)
    show(
        "left for other optimizers",
        [n for n, _ in in_backward_optimizer_filter(with_marks.named_parameters())],
    )

    # 10. Training: there is no call of step().
    for name, module in (("fused_params", with_fused_params), ("marks", with_marks)):
        show(f"losses with {name}", [train(module, kjt) for _ in range(2)])
    return shown


def table(feature: str) -> EmbeddingBagConfig:
    """A table of one feature."""
    return EmbeddingBagConfig(
        name=f"{feature}_table", embedding_dim=64, num_embeddings=4096, feature_names=[feature]
    )


def batch(rank: int) -> KeyedJaggedTensor:
    """Two bags for each feature, and other IDs on each rank."""
    return KeyedJaggedTensor(
        keys=["product", "user"],
        values=torch.tensor([101, 202, 303, 404, 505, 606, 707]) + rank,
        lengths=torch.tensor([2, 1, 1, 3]),
    )


def steps(sharded_ebc: ShardedEmbeddingBagCollection, kjt: KeyedJaggedTensor) -> KeyedTensor:
    """The three steps of every sharded module, one after the other, as a pipeline takes them."""
    sizes_on_their_way = sharded_ebc.input_dist(kjt)
    ids_on_their_way = sizes_on_their_way.wait()
    inputs = ids_on_their_way.wait()
    pooled_on_the_ranks = sharded_ebc.lookup(inputs)
    result: KeyedTensor = sharded_ebc.output_dist(pooled_on_the_ranks, inputs).wait()
    return result


def train(module: ShardedEmbeddingBagCollection, kjt: KeyedJaggedTensor) -> float:
    """One step towards smaller embeddings; the loss before it."""
    loss: torch.Tensor = module(kjt).values().mean()
    loss.backward()
    return loss.item()


def plan_text(plan: ShardingPlan) -> str:
    """Who holds what."""
    lines = []
    for path, tables in plan.plan.items():
        lines += [f"module: {path!r}", row("table", "sharding type", "kernel", "ranks")]
        lines += [
            row(name, found.sharding_type, found.compute_kernel, list(found.ranks))
            for name, found in tables.items()
        ]
        lines += ["", row("table", "shard offsets", "shard sizes", "rank")]
        lines += [line for name, found in tables.items() for line in shard_rows(name, found)]
    return "\n".join(lines)


def shard_rows(name: str, sharding: ParameterSharding) -> list[str]:
    """One line for each shard; none for a table that all ranks hold."""
    return [row(name, list(s.shard_offsets), list(s.shard_sizes), s.rank) for s in sharding.shards]


def row(*cells: object) -> str:
    """A line of a table."""
    return " | ".join(f"{cell!s:15}" for cell in cells).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--world-size", type=int, default=1, metavar="W", help="number of ranks (default 1)")
    world_size: int = parser.parse_args(argv).world_size
    if world_size < 1:
        parser.error(f"--world-size: got {world_size}, expected at least 1")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_rank, args=(world_size, f"file://{folder}/store"), nprocs=world_size)
    return 0


def run_rank(rank: int, world_size: int, init_method: str) -> None:
    """A rank's process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    tutorial(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
