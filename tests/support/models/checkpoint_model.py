"""A model that trains on ranks under any plan, step by step; imported by spawned ranks.

Shape letters: B batch, D embedding dim, R rows, W world size.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard as Split
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional

from recsys.checkpoint.distributed import TrainingState, load_training, save_training
from recsys.embedding import EmbeddingBagCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels.training import FusedLookup
from recsys.model_parallel import DistributedModelParallel
from recsys.models.click import build_dlrm
from recsys.optim import CombinedOptimizer, EmbOptimType, KeyedOptimizerWrapper, RowWiseAdagrad
from recsys.sharding.plan import sharding_types as cuts
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from recsys.sharding.table_shards import TableShards

FACTORY = "recsys.models.click:build_dlrm"
PATH = "model.sparse_arch.embedding_bag_collection"
DIM, BATCH = 32, 6
ROWS = {"users": 41, "goods": 30, "tags": 8}
ARGUMENTS: dict[str, Any] = {
    "tables": [
        {"name": name, "num_embeddings": rows, "embedding_dim": DIM, "feature_names": [f"f_{name}"]}
        for name, rows in ROWS.items()
    ],
    "dense_in_features": 3,
    "dense_arch_layer_sizes": [8, DIM],
    "over_arch_layer_sizes": [8, 1],
}
ADAGRAD = {"rows": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "weights": EmbOptimType.EXACT_ADAGRAD}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a run trains.

    Attributes:
        plan: a name: tw, rw, cw, cw3 (columns in three), dp, grid, mixed.
        kernel: "fused" or "dense", for tables that are cut.
        numbers: optimizer state per "rows" or per "weights".
    """

    plan: str
    kernel: str = "fused"
    numbers: str = "rows"


def _cut(table: Any, at: int, setup: Setup, world_size: int) -> ParameterSharding:
    name = {"mixed": ["rw", "cw", "dp"][at % 3]}.get(setup.plan, setup.plan)
    ranks = list(range(world_size))
    sharding = {
        "tw": lambda: cuts.table_wise(table, at % world_size),
        "rw": lambda: cuts.row_wise(table, ranks),
        "cw": lambda: cuts.column_wise(table, [(at + r) % world_size for r in range(2)]),
        "cw3": lambda: cuts.column_wise(table, [(at + r) % world_size for r in range(3)]),
        "dp": lambda: cuts.data_parallel(table),
        "grid": lambda: cuts.grid(table, range(world_size // 2), 2),
    }[name]()
    return sharding if sharding.is_replicated else sharding.with_kernel(setup.kernel)


def make(setup: Setup) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model over all ranks, and all of its optimizers."""
    torch.manual_seed(1)
    model = build_dlrm(**ARGUMENTS)
    ebc = model.get_submodule(PATH)
    assert isinstance(ebc, EmbeddingBagCollection)
    env = ShardingEnv.from_process_group(dist.group.WORLD, "cpu", 2 if setup.plan == "grid" else None)
    tables = enumerate(ebc.embedding_bag_configs())
    plan = {table.name: _cut(table, i, setup, env.world_size) for i, table in tables}
    fused = {"optimizer": ADAGRAD[setup.numbers], "learning_rate": 0.1, "eps": 1e-8}
    sharder = EmbeddingBagCollectionSharder(fused)
    dmp = DistributedModelParallel(
        model, env, torch.device("cpu"), ShardingPlan(plan={PATH: plan}), [sharder]
    )
    held = {id(p): part for part in dmp.modules() if isinstance(part, TableShards) for p in part.parameters()}
    dense = {name: p for name, p in dmp.named_parameters() if id(p) not in held}
    plain = {name: p for name, p in dmp.named_parameters() if id(p) in held and not held[id(p)].is_fused}
    parts: list[Any] = [
        dmp.fused_optimizer,
        KeyedOptimizerWrapper(dense, lambda p: torch.optim.Adam(p, lr=0.01)),
    ]
    if plain:
        kind = RowWiseAdagrad if setup.numbers == "rows" else torch.optim.Adagrad
        parts.append(KeyedOptimizerWrapper(plain, lambda p: kind(p, lr=0.1, eps=1e-8)))
    return dmp, CombinedOptimizer(parts)


def train(model: nn.Module, optimizer: CombinedOptimizer, step: int, rank: int) -> None:
    """One step on a batch that depends on the step, the rank and the random numbers drawn so far."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    lengths = torch.randint(0, 4, (len(ROWS) * BATCH,), generator=generator)
    counts = lengths.view(len(ROWS), BATCH).sum(1).tolist()
    ids = [torch.randint(r, (n,), generator=generator) for r, n in zip(ROWS.values(), counts, strict=True)]
    features = KeyedJaggedTensor([f"f_{name}" for name in ROWS], values=torch.cat(ids), lengths=lengths)
    labels = torch.rand(BATCH).round()  # of the global generator: a resumed run must find it as it was
    optimizer.zero_grad()
    score = model(torch.randn(BATCH, 3, generator=generator), features)["score"]
    functional.binary_cross_entropy(score, labels).backward()
    optimizer.step()


@torch.no_grad()
def numbers(model: DistributedModelParallel, optimizer: CombinedOptimizer) -> dict[str, list[Any]]:
    """What this rank holds, as the lookups and optimizers have it: name -> [(first row, first column, numbers)].

    Numbers per row are spread over the columns that they train, so that all plans have ``[R, D]``.
    """
    found: dict[str, list[Any]] = {}
    in_tables = set()
    for path, part in model.module.named_modules():
        if not isinstance(part, TableShards):
            continue
        for (where, lookup, i), parameter in zip(part._held, part.parameters(), strict=True):
            in_tables.add(id(parameter))
            weight = lookup.weights[i]
            if isinstance(lookup, FusedLookup):
                state = lookup.states()[i]["momentum1"]
            else:
                state = optimizer.state[parameter]["sum"]
            by_row = state.numel() == weight.shape[0]
            spread = (state.view(-1, 1).expand(weight.shape) if by_row else state).clone()
            for kind, tensor in (("weight", weight.clone()), ("state", spread)):
                found.setdefault(f"{path}.{kind}", []).append((*where.shard_offsets, tensor))
    for name, parameter in model.named_parameters():
        if id(parameter) not in in_tables:
            states = {k: v.clone() for k, v in optimizer.state[parameter].items()}
            for kind, tensor in {"weight": parameter.detach().clone(), **states}.items():
                found[f"{name}.{kind}"] = [(None, None, tensor)]
    return found


def trained(rank: int, world_size: int, run: Path, setup: Setup, num_steps: int) -> dict[str, list[Any]]:
    """Train, save, and say what was saved."""
    del world_size
    model, optimizer = make(setup)
    for step in range(num_steps):
        train(model, optimizer, step, rank)
    state = TrainingState(
        step=num_steps,
        factory=FACTORY,
        arguments=ARGUMENTS,
        shared={"epoch": 2, "auc": 0.75},
        local={"position": 10 + rank},
    )
    save_training(run, model, optimizer, state)
    return numbers(model, optimizer)


def loaded(rank: int, world_size: int, run: Path, setup: Setup) -> tuple[dict[str, list[Any]], Any]:
    """Load into a model that has trained something else, and say what it holds, and where the run stood."""
    del world_size
    model, optimizer = make(setup)
    train(model, optimizer, 77, rank)
    state = load_training(run, model, optimizer)
    assert state is not None
    return numbers(model, optimizer), (state.step, dict(state.shared), state.local and dict(state.local))


def continued(
    rank: int, world_size: int, run: Path, setup: Setup, steps: tuple[int, int]
) -> dict[str, list[Any]]:
    """Load, train on, and say what came of it."""
    del world_size
    model, optimizer = make(setup)
    load_training(run, model, optimizer)
    for step in range(*steps):
        train(model, optimizer, step, rank)
    return numbers(model, optimizer)


def failing(rank: int, world_size: int, run: Path, setup: Setup, what: str) -> str:
    """The error of a call that cannot work, on each rank."""
    del world_size
    model, optimizer = make(setup)
    try:
        if what == "save":
            bad = {"position": object()} if rank == 1 else None
            save_training(run, model, optimizer, TrainingState(step=1, local=bad))
        else:
            load_training(run, model, optimizer)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def full_disk(rank: int, world_size: int, run: Path, setup: Setup) -> str:
    """The error of a save for which rank 1's disk has no room, on each rank."""
    del world_size
    model, optimizer = make(setup)

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_item = filesystem._write_item
    filesystem._write_item = no_room if rank == 1 else write_item
    try:
        save_training(run, model, optimizer, TrainingState(step=9))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        filesystem._write_item = write_item
    return "no error"


def joined(by_rank: list[Mapping[str, list[Any]]]) -> dict[str, Tensor]:
    """Whole tensors from what all ranks hold; copies must be equal, and nothing may be missing."""
    whole: dict[str, Tensor] = {}
    for name in {name for found in by_rank for name in found}:
        pieces = [piece for found in by_rank for piece in found.get(name, [])]
        if pieces[0][0] is None:
            assert all(torch.equal(piece[2], pieces[0][2]) for piece in pieces), name
            whole[name] = pieces[0][2]
            continue
        table = name.rsplit(".", 2)[1]
        whole[name] = torch.full((ROWS[table], DIM), torch.nan)
        for row, column, tensor in pieces:
            place = whole[name][row : row + tensor.shape[0], column : column + tensor.shape[1]]
            assert bool(place.isnan().all()) or torch.equal(place, tensor), name
            place.copy_(tensor)
        assert not bool(whole[name].isnan().any()), name
    return whole


def dtensors(rank: int, world_size: int, folder: Path) -> None:
    """Write a directory of DTensors, cut by rows and by columns."""
    del rank
    mesh = init_device_mesh("cpu", (world_size,))
    state = {
        "rows": distribute_tensor(torch.arange(21.0).view(7, 3), mesh, [Split(0)]),
        "columns": distribute_tensor(torch.arange(20.0).view(4, 5), mesh, [Split(1)]),
    }
    save(state, checkpoint_id=folder)
