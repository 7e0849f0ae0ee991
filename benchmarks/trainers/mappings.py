"""The memory of a rank and the time of a step, with the mapping of raw IDs replicated and sharded.

Ranks of gloo on this machine train one table whose rows all have owners, with Zipf-distributed raw IDs that move on.
Both kinds of models are in the same processes and take turns. The mapping's tensors are counted; processor time is that
of a rank, and "admission" a step that admits new IDs.

Shape letters: B batch of a rank, N IDs of a row, R rows, W ranks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.tables import table_of
from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingBagConfig,
    EmbOptimType,
    KeyedJaggedTensor,
    ShardingPlan,
)
from recsys.managed import (
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.sharding.plan.sharding_types import row_wise

_KINDS = ("replicated", "sharded")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is trained.

    Attributes:
        num_rows: R.
        embedding_dim: The columns of the table.
        batch_size: B.
        ids_per_row: N.
        interval: Steps between two admissions.
        num_buckets: Buckets of the sharded mapping.
        num_intervals: Intervals that are measured.
    """

    num_rows: int
    embedding_dim: int
    batch_size: int
    ids_per_row: int
    interval: int
    num_buckets: int
    num_intervals: int


def _model(sizes: Sizes, num_buckets: int, world_size: int) -> DistributedModelParallel:
    table = EmbeddingBagConfig(
        name="user", num_embeddings=sizes.num_rows, embedding_dim=sizes.embedding_dim, feature_names=["user"]
    )
    with torch.device("meta"):
        bags = EmbeddingBagCollection([table])
    module = MCHManagedCollisionModule(
        sizes.num_rows, torch.device("meta"), LRU_EvictionPolicy(), sizes.interval, buckets=num_buckets
    )
    managed = ManagedCollisionEmbeddingBagCollection(
        bags, ManagedCollisionCollection({"user": module}, [table]), embeddings_only=True
    )
    plan = {"_embedding_module": {"user": row_wise(table, list(range(world_size)))}}
    options = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01}
    return DistributedModelParallel(
        managed, plan=ShardingPlan(plan=plan), sharders=[EmbeddingBagCollectionSharder(options)]
    ).train()


def _batch(ids: Tensor, num_bags: int) -> KeyedJaggedTensor:
    lengths = torch.full((num_bags,), ids.numel() // max(num_bags, 1), dtype=torch.int64)
    return KeyedJaggedTensor(["user"], ids, lengths=lengths)


def _mapping(model: DistributedModelParallel) -> ManagedCollisionCollection:
    return cast(ManagedCollisionEmbeddingBagCollection, model.module).managed_collision_collection


def _fill(model: DistributedModelParallel, sizes: Sizes, rank: int, world_size: int) -> None:
    """Give every row an owner: the first interval."""
    mine = torch.arange(rank, sizes.num_rows, world_size)
    for step in range(sizes.interval):
        _mapping(model).profile(_batch(mine if step == 0 else mine[:0], int(step == 0)))


def _zipf(sizes: Sizes, step: int, rank: int) -> Tensor:
    """Return the raw IDs of a batch, ``[B * N]``: most are popular, and one in ten is new."""
    generator = torch.Generator().manual_seed(step * 1_000 + rank)
    draws = torch.rand(sizes.batch_size * sizes.ids_per_row, generator=generator, dtype=torch.float64)
    ids = (sizes.num_rows**draws).to(torch.int64)
    is_new = torch.rand(ids.shape, generator=generator) < 0.1
    return torch.where(is_new, sizes.num_rows * (step + 2) + ids, ids)


def _rank(rank: int, world_size: int, folder: str, sizes: Sizes) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    models = {
        kind: _model(sizes, sizes.num_buckets if kind == "sharded" else 1, world_size) for kind in _KINDS
    }
    found: dict[str, Any] = {}
    for kind, model in models.items():
        _fill(model, sizes, rank, world_size)
        (module,) = _mapping(model).managed_collision_modules().values()
        found[kind] = {
            "bytes": sum(b.nbytes for b in module.buffers()),
            "wall": [],
            "cpu": [],
            "admission": [],
        }
    for step in range(sizes.interval * sizes.num_intervals):
        ids = _zipf(sizes, step, rank)
        for kind, model in models.items():
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            model(_batch(ids, sizes.batch_size)).values().sum().backward()
            taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            if (step + 1) % sizes.interval == 0:
                found[kind]["admission"].append(taken["cpu"])
            else:
                for clock, seconds in taken.items():
                    found[kind][clock].append(seconds)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(world_size: int, sizes: Sizes) -> list[dict[str, Any]]:
    """Return a row of results for each kind: of bytes the largest rank's, of times the median over steps and ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world_size, folder, sizes), nprocs=world_size)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world_size)]
    rows = []
    for kind in _KINDS:
        of_ranks = [rank[kind] for rank in ranks]

        def median_ms(what: str, of_ranks: list[dict[str, Any]] = of_ranks) -> float:
            return round(1e3 * float(statistics.median(value for of in of_ranks for value in of[what])), 2)

        rows.append(
            {
                "ranks": world_size,
                "mapping": kind,
                "mapping of a rank, MB": round(max(of["bytes"] for of in of_ranks) / 1e6, 2),
                "step, ms": median_ms("wall"),
                "step, ms of processor": median_ms("cpu"),
                "admission, ms of processor": median_ms("admission"),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser("trainers.mappings", __doc__)
    parser.add_argument("--ranks", default="2,4", help="default: 2,4")
    parser.add_argument("--rows", type=int, default=4_000_000, help="default: 4000000")
    parser.add_argument("--dim", type=int, default=16, help="default: 16")
    parser.add_argument("--batch-size", type=int, default=2_048, help="default: 2048")
    parser.add_argument("--ids", type=int, default=10, help="IDs of a row (default: 10)")
    parser.add_argument("--interval", type=int, default=10, help="default: 10")
    parser.add_argument("--buckets", type=int, default=16, help="default: 16")
    parser.add_argument("--intervals", type=int, default=3, help="that are measured (default: 3)")
    return run(parser, argv, _measured)


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    sizes = Sizes(
        num_rows=args.rows,
        embedding_dim=args.dim,
        batch_size=args.batch_size,
        ids_per_row=args.ids,
        interval=args.interval,
        num_buckets=args.buckets,
        num_intervals=args.intervals,
    )
    results = [row for ranks in args.ranks.split(",") for row in measure(int(ranks), sizes)]
    title = f"{args.rows} rows, {args.batch_size} x {args.ids} IDs a rank"
    rows = [{name: str(value) for name, value in result.items()} for result in results]
    return Measured(data={"results": results}, shown=[table_of(title, rows, texts=["mapping"])])


if __name__ == "__main__":
    sys.exit(main())
