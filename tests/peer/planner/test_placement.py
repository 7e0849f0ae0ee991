"""Proposers and partitioners beside TorchRec's: of equal options, the same proposals in the same order and ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from recsys.as_torchrec.table import load_table
from tests.peer import torchrec_peer

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
assert torchrec_peer.torchrec
PLANNER = "torchrec.distributed.planner"
NAMES = {
    f"{PLANNER}.enumerators": ["EmbeddingEnumerator"],
    f"{PLANNER}.partitioners": ["GreedyPerfPartitioner", "SortBy"],
    f"{PLANNER}.proposers": ["GreedyProposer", "UniformProposer", "GridSearchProposer"],
    f"{PLANNER}.types": ["Perf", "Storage", "Topology"],
    "torchrec.distributed.embeddingbag": ["EmbeddingBagCollectionSharder"],
    "torchrec.modules.embedding_configs": ["EmbeddingBagConfig"],
    "torchrec.modules.embedding_modules": ["EmbeddingBagCollection"],
}
TABLE = load_table()
THEIRS = SimpleNamespace(
    **{name: getattr(import_module(module), name) for module, names in NAMES.items() for name in names}
)
OURS = SimpleNamespace(
    **{name: TABLE.modules[module][name].load() for module, names in NAMES.items() for name in names}
)


def options(m: Any, topology: Any, kinds: list[str], num_tables: int = 5) -> list[Any]:
    """Return the options of tables, with times and memory that follow from their places in the list."""

    class Sharder(m.EmbeddingBagCollectionSharder):  # type: ignore[misc]
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return kinds

        def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
            return ["fused"]

    tables = [
        m.EmbeddingBagConfig(num_embeddings=160, embedding_dim=64, name=f"t{i}", feature_names=[f"f{i}"])
        for i in range(num_tables)
    ]
    model = nn.Sequential(m.EmbeddingBagCollection(tables=tables, device=torch.device("meta")))
    found = m.EmbeddingEnumerator(topology, batch_size=64).enumerate(model, [Sharder()])
    found.sort(key=lambda option: (option.name, option.sharding_type))
    for i, option in enumerate(found):
        for shard in option.shards:
            shard.perf = m.Perf(fwd_compute=i * 37 % 11 + i / 100, fwd_comms=0, bwd_compute=0, bwd_comms=0)
            shard.storage = m.Storage(hbm=i * 53 % 17 + 1, ddr=0)
    return found


def placed(m: Any, kinds: list[str], hosts: int, **arguments: Any) -> dict[str, list[int]]:
    topology = m.Topology(world_size=4, compute_device="cuda", local_world_size=4 // hosts)
    chosen = options(m, topology, kinds)
    if "sort_by" in arguments:
        arguments["sort_by"] = m.SortBy(arguments["sort_by"])
    plan = m.GreedyPerfPartitioner(**arguments).partition(chosen, copy.deepcopy(topology))
    return {option.name: [shard.rank for shard in option.shards] for option in plan}


PLACED: dict[str, tuple[list[str], int, dict[str, Any]]] = {
    "tables": (["table_wise"], 1, {}),
    "tables on hosts": (["table_wise"], 2, {}),
    "tables by time": (["table_wise"], 2, {"sort_by": "perf"}),
    "tables by memory": (["table_wise"], 2, {"sort_by": "storage"}),
    "tables by module": (["table_wise"], 2, {"balance_modules": True}),
    "rows": (["row_wise"], 1, {}),
    "rows of hosts": (["table_row_wise"], 2, {}),
}


@pytest.mark.parametrize(("kinds", "hosts", "arguments"), PLACED.values(), ids=PLACED)
def test_ranks_are_the_same(kinds: list[str], hosts: int, arguments: dict[str, Any]) -> None:
    assert placed(OURS, kinds, hosts, **arguments) == placed(THEIRS, kinds, hosts, **arguments)


def always(_: int) -> tuple[bool, float | None]:
    return True, None


def proposed(m: Any, proposer: Any, rate: Callable[[int], tuple[bool, float | None]]) -> list[Any]:
    topology = m.Topology(world_size=2, compute_device="cuda")
    proposer.load(options(m, topology, ["table_wise", "row_wise"], 3))
    found = []
    for i in range(40):
        proposal = proposer.propose()
        if proposal is None:
            break
        found.append(sorted((option.name, option.sharding_type) for option in proposal))
        fits, rating = rate(i)
        proposer.feedback(fits, proposal, rating)
    return found


PROPOSERS: dict[str, tuple[Callable[[Any], Any], Callable[[int], tuple[bool, float | None]]]] = {
    "greedy": (lambda m: m.GreedyProposer(), always),
    "greedy by time": (lambda m: m.GreedyProposer(use_depth=False), always),
    "greedy until it gets worse": (lambda m: m.GreedyProposer(threshold=2), lambda i: (True, float(i))),
    "greedy where little fits": (lambda m: m.GreedyProposer(), lambda i: (i % 3 == 0, None)),
    "uniform": (lambda m: m.UniformProposer(), always),
    "grid": (lambda m: m.GridSearchProposer(), always),
    "grid that is too large": (lambda m: m.GridSearchProposer(max_proposals=3), always),
}


@pytest.mark.parametrize(("make", "rate"), PROPOSERS.values(), ids=PROPOSERS)
def test_proposals_are_the_same(
    make: Callable[[Any], Any], rate: Callable[[int], tuple[bool, float | None]]
) -> None:
    ours, theirs = (proposed(m, make(m), rate) for m in (OURS, THEIRS))
    assert ours == theirs
