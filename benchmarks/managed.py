"""Cost of mapping raw IDs in a graph: one hash table for all tables, compared to a binary search in each.

``native`` is the hash table with the operator that programs call, where the native kernels are built.

Shape letters: B batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
from export.graph.tracing.tracer import trace
from recsys.configs import EmbeddingBagConfig
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels import operators
from recsys.managed import LFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from recsys.managed.frozen import FrozenLookup
from recsys.scripting.torchscript import script
from serve.profiler.rounds import CLOCKS, Contestant, RoundsConfig, run_rounds

_NUM_BATCHES = 50


class _OfTensors(nn.Module):
    def __init__(self, mapping: nn.Module, keys: Sequence[str]) -> None:
        super().__init__()
        self.mapping = mapping
        self._keys = list(keys)

    # No annotations: FX would pass them as strings to TorchScript, which cannot read them.
    def forward(self, lengths, values):  # type: ignore[no-untyped-def]
        return self.mapping(KeyedJaggedTensor(self._keys, values, lengths=lengths)).values()


def _scripted(mapping: nn.Module, keys: Sequence[str]) -> torch.jit.ScriptModule:
    root = _OfTensors(mapping, keys)
    return script(fx.GraphModule(root, trace(root)))


def _collection(num_tables: int, num_ids: int, generator: torch.Generator) -> ManagedCollisionCollection:
    """Return tables full of random raw IDs."""
    modules, tables = {}, []
    for i in range(num_tables):
        module = MCHManagedCollisionModule(num_ids + 1, None, LFU_EvictionPolicy(), 1)
        module.train()(torch.randint(-(2**63), 2**63 - 1, (num_ids,), generator=generator))
        modules[f"t{i}"] = module
        tables.append(
            EmbeddingBagConfig(
                name=f"t{i}", num_embeddings=num_ids + 1, embedding_dim=4, feature_names=[f"f{i}"]
            )
        )
    return ManagedCollisionCollection(modules, tables).eval()


def _batches(
    collection: ManagedCollisionCollection, batch_size: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Return a batch with one ID in each bag, half of them known."""
    made = []
    for _ in range(_NUM_BATCHES):
        values = []
        for module in collection.managed_collision_modules().values():
            assert isinstance(module, MCHManagedCollisionModule)
            place = torch.randint(0, module.output_size() - 1, (batch_size,), generator=generator)
            strange = torch.randint(-(2**63), 2**63 - 1, (batch_size,), generator=generator)
            known = torch.rand(batch_size, generator=generator) < 0.5
            values.append(torch.where(known, module.raw_ids[place], strange))
        made.append((torch.ones(len(values) * batch_size, dtype=torch.int64), torch.cat(values)))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser("managed", __doc__)
    parser.add_argument("--tables", type=int, default=26, help="default: 26")
    parser.add_argument(
        "--ids", type=int, default=100_000, help="known raw IDs of each table (default: 100000)"
    )
    parser.add_argument("--batch-sizes", default="1,8,32,128", help="default: 1,8,32,128")
    parser.add_argument("--rounds", type=int, default=11, help="default: 11")
    parser.add_argument("--turn-s", type=float, default=0.1, help="length of a turn (default: 0.1)")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    return run(parser, argv, _measured)


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    generator = torch.Generator().manual_seed(0)
    collection = _collection(args.tables, args.ids, generator)
    keys = list(collection.table_of_feature())
    graphs = {
        "hash table": _scripted(FrozenLookup(collection), keys),
        "searches": _scripted(collection, keys),
    }
    if not operators.why_missing():
        native = FrozenLookup(collection, find_rows=torch.ops.recsys_ops.mapped_rows)
        graphs["native"] = _scripted(native, keys)
    results = []
    for batch_size in map(int, args.batch_sizes.split(",")):
        batches = _batches(collection, batch_size, generator)
        if not all(
            torch.equal(graph(*b), graphs["searches"](*b)) for graph in graphs.values() for b in batches
        ):
            raise StepError("the lookups disagree")
        config = RoundsConfig(num_rounds=args.rounds, turn_s=args.turn_s, clock=args.clock)
        timings = run_rounds({name: Contestant(graph, batches) for name, graph in graphs.items()}, config)
        speedups = timings["hash table"].speedups_over(timings["searches"])
        results.append(
            {
                "batch_size": batch_size,
                **{f"{name}, us": round(timing.median_s * 1e6, 1) for name, timing in timings.items()},
                "hash table, times faster": round(speedups[len(speedups) // 2], 2),
            }
        )
    rows = [{name: str(value) for name, value in result.items()} for result in results]
    title = f"{args.tables} tables of {args.ids} raw IDs"
    return Measured(data={"results": results}, shown=[table_of(title, rows)])


if __name__ == "__main__":
    sys.exit(main())
