"""The state of a model and its optimizers in a training checkpoint, independent of sharding plans.

A table's weight is ``[R, D]`` under every plan. Its optimizer state has one name for all kernels, such as
``<table>.momentum1``, and one form: ``[R, D]`` for a number per weight, ``[R]`` for a number per row, ``[R,
K]`` for a number per row if the plan cuts the columns into K blocks, each with a number of its own.

Shape letters: D embedding dimension, K blocks of columns, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.errors import CheckpointError
from recsys.sharding.table_shards import Rectangle, TableShards, rectangle_of

# State names of torch's and this project's optimizers for dense gradients -> FBGEMM's names.
_CANONICAL = {"sum": "momentum1", "exp_avg": "momentum1", "exp_avg_sq": "momentum2"}


@dataclass(frozen=True, kw_only=True)
class View:
    """A tensor of a run, and the parts of it that are on this rank.

    Attributes:
        shape: The shape of the whole tensor.
        dtype: The dtype of its elements.
        shards: The rank of each rectangle; None if every rank holds all of it.
        local: This rank's rectangles (offsets, sizes) and their memory.
        widths: For a number per row of a table: the columns of each block, from left to right.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: Mapping[Rectangle, int] | None
    local: Sequence[tuple[Rectangle, Tensor]]
    widths: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerViews:
    """An optimizer's state.

    Attributes:
        tensors: By name.
        counters: Step counts of tables, int64 or float ``[1]`` or scalar tensors, by name; ranks without a shard may
            not have counted.
        values: Values other than tensors, by name: the dict that holds each, and its key.
    """

    tensors: dict[str, View] = field(default_factory=dict)
    counters: dict[str, list[Tensor]] = field(default_factory=dict)
    values: dict[str, tuple[dict[Any, Any], Any]] = field(default_factory=dict)


def model_views(state: Mapping[str, Any]) -> dict[str, View]:
    """Return a model's state dict as views.

    Raises:
        CheckpointError: A value is not a tensor.
    """
    views = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"model: {name!r} is a {type(value).__name__}, expected tensors only")
        views[name] = _view(value)
    return views


def optimizer_views(model: nn.Module, state: Mapping[str, Any]) -> OptimizerViews:
    """Return the views of an optimizer's state, ``state_dict()["state"]``.

    Args:
        model: The model that it trains.
        state: State by parameter and state name; parameters of tables have their names in the model, or these
            with a prefix.

    Raises:
        CheckpointError: A table's state has a shape that fits no plan.
    """
    tables = {
        f"{name}.weight".removeprefix("."): part
        for name, part in _unwrapped(model).named_modules()
        if isinstance(part, TableShards)
    }
    views = OptimizerViews()
    shards_of_states: dict[str, tuple[TableShards, str, list[tuple[int, Tensor]]]] = {}
    for parameter, states in state.items():
        name, number, table = _table_of(parameter, tables)
        for key, holder, last in _leaves(states):
            value = holder[last]
            if table is None:
                at = f"{parameter}.{key}"
                if isinstance(value, Tensor):
                    views.tensors[at] = _view(value)
                else:
                    views.values[at] = (holder, last)
                continue
            at = f"{name}.{_canonical(table.config.name, key)}"
            if isinstance(value, Tensor) and not isinstance(value, ShardedTensor):
                value = _by_row(table, value)
            if not isinstance(value, Tensor):
                views.values[at] = (holder, last)
            elif isinstance(value, ShardedTensor):
                views.tensors[at] = _of_table(table, _view(value))
            elif value.numel() == 1 and key.rpartition(".")[2] == "step":
                views.counters.setdefault(at, []).append(value)
            elif table.sharding.is_replicated:
                views.tensors[at] = _of_table(table, _view(value))
            else:
                shards_of_states.setdefault(at, (table, at, []))[2].append((number, value))
    for at, (table, _, parts) in shards_of_states.items():
        views.tensors[at] = _of_shards(table, at, parts)
    return views


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the module whose paths are the names in state dicts: a DistributedModelParallel's own."""
    found = getattr(model, "module", None)
    return found if isinstance(found, nn.Module) and hasattr(model, "plan") else model


def _table_of(parameter: str, tables: Mapping[str, TableShards]) -> tuple[str, int, TableShards | None]:
    """Return a parameter's table and shard number (``weight``, or ``weight_1`` for a rank's second shard)."""
    path, _, last = parameter.rpartition(".")
    number = last.removeprefix("weight").removeprefix("_") or "0"
    if last.startswith("weight") and number.isdecimal():
        whole = f"{path}.weight".removeprefix(".")
        for name, table in tables.items():
            if whole == name or whole.endswith(f".{name}"):
                return name, int(number), table
    return parameter, 0, None


def _canonical(table: str, state: str) -> str:
    own = state.removeprefix(f"{table}.")
    return f"{table}.{_CANONICAL.get(own, own)}"


def _leaves(states: Mapping[Any, Any], at: str = "") -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """Yield every state of a parameter, in nested dicts too: its name, the dict that holds it, its key."""
    for key, value in states.items():
        name = f"{at}.{key}" if at else str(key)
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name, states, key  # type: ignore[misc]


def _view(value: Tensor) -> View:
    if not isinstance(value, ShardedTensor):
        shape = tuple(value.shape)
        whole: Rectangle = ((0,) * len(shape), shape)
        return View(shape=shape, dtype=value.dtype, shards=None, local=[(whole, value.detach())])
    metadata = value.metadata()
    return View(
        shape=tuple(metadata.size),
        dtype=metadata.tensor_properties.dtype,
        shards={rectangle_of(shard): _rank(shard) for shard in metadata.shards_metadata},
        local=[(rectangle_of(shard.metadata), shard.tensor.detach()) for shard in value.local_shards()],
    )


def _rank(shard: Any) -> int:
    rank = shard.placement.rank()
    assert isinstance(rank, int)
    return rank


def _by_row(table: TableShards, value: Tensor) -> Tensor:
    """Return numbers by row as ``[R]``, also where the optimizer holds them as ``[R, 1]``: the same memory."""
    return value.squeeze(1) if table.size[1] > 1 and value.shape[1:] == (1,) else value


def _of_table(table: TableShards, view: View) -> View:
    """Return the view of a whole table's state: a number per weight or per row."""
    widths = _widths(table)
    if view.shape == table.size:
        return view
    num_rows = table.size[0]
    if view.shape not in ((num_rows,), (num_rows, len(widths))):
        raise CheckpointError(
            f"optimizer: a state of table {table.config.name!r} has shape {list(view.shape)}, expected "
            f"{list(table.size)} or a number for each row and each of the {len(widths)} blocks of columns"
        )
    return View(shape=view.shape, dtype=view.dtype, shards=view.shards, local=view.local, widths=widths)


def _of_shards(table: TableShards, at: str, parts: Sequence[tuple[int, Tensor]]) -> View:
    """Return the view of a state of this rank's shards, each of which is a parameter (the dense kernel)."""
    mine = table.local_weights()
    row_wise = parts[0][1].dim() == 1
    local: list[tuple[Rectangle, Tensor]] = []
    for number, value in parts:
        where, weight = mine[number]
        if tuple(value.shape) != (tuple(weight.shape[:1]) if row_wise else tuple(weight.shape)):
            raise CheckpointError(
                f"optimizer: {at!r} has shape {list(value.shape)} for a shard {list(weight.shape)}, expected a number "
                "per weight or per row"
            )
        rectangle = table.state_rectangle(where, row_wise=row_wise)
        local.append((rectangle, value.detach().view(rectangle[1])))
    return View(
        shape=table.state_shape(row_wise=row_wise),
        dtype=parts[0][1].dtype,
        shards=table.state_ranks(row_wise=row_wise),
        local=local,
        widths=_widths(table) if row_wise else None,
    )


def _widths(table: TableShards) -> tuple[int, ...]:
    return tuple(end - start for start, end in table.column_blocks)
