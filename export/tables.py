"""The tables of an artifact: how they are stored, and their rows, written a few at a time, with digests of blocks.

Tables in mapped files need not fit in memory: the system can drop their pages.

Shape letters: R rows, D embedding dim.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from export.config import ExportConfig, target_name
from recsys.base.files import reserve, write_all_at
from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import FloatCollection, takes_weights
from recsys.errors import CheckpointError, ExportError
from recsys.inputs.signature import IdPolicy
from recsys.planner.devices import DeviceOptions, plan_devices
from recsys.quant import float_tables
from recsys.rows.format import row_alignment_for
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import QuantizationError, StoredTable, Writer, plan_blob, store_table
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan, ShardMetadata, check_plan
from recsys.sharding.plan.sharding_types import table_wise, without_replicas

T = TypeVar("T")
# Bytes written before their pages are released: enough for long writes, little compared to a table.
_BLOCK_BYTES = 16 << 20
_MADV_DONTNEED = 4  # Linux, include/uapi/asm-generic/mman-common.h
# The mapping behind each tensor that `MappedTensor` made, by its address, as long as the tensor lives.
_MAPPINGS: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """All stored tables of a model.

    Attributes:
        tables: By collection path, with stored data types.
        paths: By collection path and table, the table's path.
        weighted: The paths of the collections whose lookups take weights.
        policies: By table path.
        stored: By table path, in the order of the rows.
        layout: The layout of the rows.
        plans: Plans by target name, with the layout's cuts.
        envs: Ranks by target name.
    """

    tables: Mapping[str, Sequence[BaseEmbeddingConfig]]
    paths: Mapping[str, Mapping[str, str]]
    weighted: Collection[str]
    policies: Mapping[str, IdPolicy]
    stored: Mapping[str, StoredTable]
    layout: BlobLayout
    plans: Mapping[str, ShardingPlan]
    envs: Mapping[str, ShardingEnv]


def plan_tables(
    collections: Mapping[str, FloatCollection], config: ExportConfig, mapped: Collection[str] = ()
) -> StoredModel:
    """Decide everything about the tables.

    Args:
        collections: By path.
        config: The options.
        mapped: The paths of tables whose raw IDs the model maps.

    Raises:
        ExportError: An option names an unknown table, or sets an ID policy that the model determines.
        PlanError: The plan does not fit, or nothing fits the memory.
        ValueError: A column cut does not suit a row type.
    """
    floats = {path: float_tables(collection) for path, collection in collections.items()}
    paths = {
        path: {table.name: table_path(path, table.name) for table in group} for path, group in floats.items()
    }
    types = _by_path(config.table_data_types, config.data_type, paths, "table_data_types")
    policies = _policies(config, paths, mapped)
    tables = {
        path: [replace(table, data_type=types[paths[path][table.name]]) for table in group]
        for path, group in floats.items()
    }
    envs = {target_name(target): ShardingEnv.over_devices(target) for target in config.targets}
    plans = {
        name: _plan(tables, env, config, config.target_plans.get(name, config.plan))
        for name, env in envs.items()
    }
    cuts = {
        at: _common_cuts([plan.of(path)[name] for plan in plans.values()])
        for path, group in paths.items()
        for name, at in group.items()
    }
    stored = {
        name: StoredTable(
            name=name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=table.data_type,
            column_cuts=cuts[name],
            zero_row=policies[name] is IdPolicy.ZERO,
        )
        for path, group in tables.items()
        for table in group
        for name in [paths[path][table.name]]
    }
    refined = {
        target: ShardingPlan(
            plan={
                path: {name: _refined(sharding, cuts[paths[path][name]]) for name, sharding in group.items()}
                for path, group in plan.plan.items()
            }
        )
        for target, plan in plans.items()
    }
    return StoredModel(
        tables=tables,
        paths=paths,
        weighted={path for path, collection in collections.items() if takes_weights(collection)},
        policies=policies,
        stored=stored,
        layout=plan_blob(stored.values()),
        plans=refined,
        envs=envs,
    )


def _policies(
    config: ExportConfig, paths: Mapping[str, Mapping[str, str]], mapped: Collection[str]
) -> dict[str, IdPolicy]:
    if IdPolicy.MAPPED in (config.id_policy, *config.table_id_policies.values()):
        raise ExportError(
            "id_policy: got 'mapped', expected reject, hash, fmix64 or zero: a table's IDs are mapped where the model "
            "holds a managed collision module for it, and nowhere else"
        )
    policies = _by_path(
        config.table_id_policies, config.id_policy or IdPolicy.REJECT, paths, "table_id_policies"
    )
    for name, at in (item for group in paths.values() for item in group.items()):
        if at in mapped:
            asked = config.table_id_policies.get(at, config.table_id_policies.get(name))
            if asked is not None:
                raise ExportError(
                    f"table_id_policies: got {asked.value!r} for table {at!r}, expected none: the model maps its raw "
                    "IDs to rows, so that none is out of range"
                )
            policies[at] = IdPolicy.MAPPED
    return policies


def _by_path(
    named: Mapping[str, T], default: T, paths: Mapping[str, Mapping[str, str]], option: str
) -> dict[str, T]:
    """Return a value for each table by path; options name tables by path or by name."""
    tables = [item for group in paths.values() for item in group.items()]
    known = {text for item in tables for text in item}
    unknown = sorted(set(named) - known)
    if unknown:
        raise ExportError(f"{option}: got unknown tables {unknown}, expected some of {sorted(known)[:20]}")
    return {at: named.get(at, named.get(name, default)) for name, at in tables}


def _plan(
    tables: Mapping[str, Sequence[BaseEmbeddingConfig]],
    env: ShardingEnv,
    config: ExportConfig,
    plan: ShardingPlan | None,
) -> ShardingPlan:
    if plan is None and env.world_size == 1 and config.device_memory_bytes is None:
        whole = {path: {t.name: table_wise(t, 0) for t in group} for path, group in tables.items()}
        return ShardingPlan(plan=whole)
    if plan is None:
        alignment = max(row_alignment_for(device) for device in env.devices)
        options = DeviceOptions(
            world_size=env.world_size, budget_bytes=config.device_memory_bytes, row_alignment=alignment
        )
        return plan_devices(tables, options)
    unknown = sorted(set(plan.plan) - set(tables))
    if unknown:
        raise ExportError(f"plan: got unknown collections {unknown}, expected {sorted(tables)}")
    for path, group in tables.items():
        check_plan(group, plan.of(path), env.world_size)
    return ShardingPlan(plan={path: without_replicas(group, plan.of(path)) for path, group in tables.items()})


def _common_cuts(shardings: Iterable[ParameterSharding]) -> tuple[tuple[int, int], ...]:
    """Return column blocks common to all targets' shards, because targets share the rows."""
    bounds = sorted({at for s in shardings for shard in s.shards for at in shard.columns})
    return tuple((bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1))


def _refined(sharding: ParameterSharding, cuts: Sequence[tuple[int, int]]) -> ParameterSharding:
    """Return the same placement with shards also cut at other targets' column cuts."""
    shards = []
    for shard in sharding.shards:
        start, end = shard.columns
        shards += [
            ShardMetadata(
                shard_offsets=(shard.rows[0], first),
                shard_sizes=(shard.shard_sizes[0], last - first),
                rank=shard.rank,
            )
            for first, last in cuts
            if start <= first and last <= end
        ]
    return ParameterSharding(sharding_type=sharding.sharding_type, shards=tuple(shards))


def on_host(env: ShardingEnv) -> ShardingEnv:
    """Return the same ranks, all in host memory."""
    return ShardingEnv.over_devices(["cpu"] * env.world_size)


class RowsWriter:
    """A writer of a rows file.

    Rows of one block must come in order, as from ``store_table``, because digests are updated while writing:
    nothing is read back, and only the current rows are in memory.
    """

    def __init__(self, path: Path, layout: BlobLayout) -> None:
        self._layout = layout
        self._file = path.open("wb", buffering=0)
        reserve(self._file.fileno(), layout.num_bytes)
        self._digests = [hashlib.sha256() for _ in layout.blocks]
        self._ends = [block.offset_bytes + block.num_bytes for block in layout.blocks]
        self._next = [block.offset_bytes for block in layout.blocks]

    def writer(self, table: str) -> Writer:
        """Return a function that writes rows of one table's blocks."""
        mine = [i for i, block in enumerate(self._layout.blocks) if block.table == table]

        def write(offset: int, rows: Tensor) -> None:
            # A complete block may end where the next one starts.
            at = next(i for i in mine if self._next[i] == offset < self._ends[i])
            data = rows.flatten().numpy().data
            self._digests[at].update(data)
            write_all_at(self._file.fileno(), data, offset)
            self._next[at] += len(data)

        return write

    def finish(self) -> tuple[str, ...]:
        """Close the file and return the digest of each block."""
        assert self._next == self._ends
        os.fsync(self._file.fileno())
        # The verification reads a few rows. Otherwise cached neighbouring pages would be mapped with them
        # and count as the export's memory.
        _drop_cached(self._file.fileno())
        self._file.close()
        return tuple(digest.hexdigest() for digest in self._digests)

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def drop_cached(path: Path) -> None:
    """Drop the pages of a file that is on disk from the system's cache, unless they are mapped.

    The verification reads single pages. As long as these are cached, a server that maps the file gets no huge pages.
    """
    with path.open("rb") as file:
        _drop_cached(file.fileno())


def _drop_cached(descriptor: int) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def write_rows(
    path: Path, stored: StoredModel, weights: Mapping[str, Tensor], progress: Callable[[str, int, int], None]
) -> tuple[tuple[str, ...], dict[str, QuantizationError]]:
    """Quantize all tables into a file.

    Args:
        path: The file.
        stored: The tables as they are stored.
        weights: The float weight ``[R, D]`` of each table, by table path.
        progress: Called with the step's name, the rows done and the rows to do.

    Returns:
        The digest of each block, and the quantization error of each table.

    Raises:
        ExportError: A table cannot be stored; the message names the table and the row.
        OSError: The file cannot be written.
    """
    errors = {}
    total = sum(table.num_embeddings for table in stored.stored.values())
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        progress("quantize", done, total)

    with closing(RowsWriter(path, stored.layout)) as rows:
        for name, table in stored.stored.items():
            try:
                errors[name] = store_table(weights[name], table, stored.layout, rows.writer(name), on_rows)
            except ValueError as error:
                raise ExportError(str(error)) from None
            release(weights[name])
        return rows.finish(), errors


def check_free(folder: Path, num_bytes: int) -> None:
    """Check that a folder's disk has room for tables.

    Raises:
        CheckpointError: Says how much is needed and how much is free.
    """
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CheckpointError(
            f"out: the tables are put together in a file beside it, which takes {num_bytes:,} bytes until the "
            f"export ends, but only {free:,} are free there; choose --out on a larger disk"
        )


class MappedTensor:
    """A tensor in an unnamed file, which is deleted with the last reference, even if the process is killed.

    Args:
        shape: Its shape, such as ``[R, D]``; without zeros.
        dtype: The dtype of its elements.
        folder: The folder of the file.

    Raises:
        CheckpointError: The disk is full.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, folder: Path) -> None:
        num_bytes = math.prod(shape) * dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed by close()
        try:
            # Allocates all blocks now: on a full disk, a later write to the mapping would kill the process.
            reserve(self._file.fileno(), num_bytes)
        except OSError as error:
            self._file.close()
            raise CheckpointError(f"out: no room beside it for a table: {error.strerror}") from None
        self._mapping = mmap.mmap(self._file.fileno(), num_bytes)
        self._mapping.madvise(mmap.MADV_RANDOM)
        self.tensor = torch.frombuffer(self._mapping, dtype=dtype).view(*shape)
        _MAPPINGS[self.tensor.data_ptr()] = self._mapping

    def write(self, offsets: Sequence[int], values: Tensor) -> None:
        """Copy a rectangle to its place, a few rows at a time."""
        place = self.tensor
        for dim, (start, size) in enumerate(zip(offsets, values.shape, strict=True)):
            place = place.narrow(dim, start, size)
        row_bytes = self.tensor.stride(0) * self.tensor.element_size()
        step = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(0, len(values), step):
            rows = values[first : first + step]
            place[first : first + step].copy_(rows)
            start = (offsets[0] + first) * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            end = (offsets[0] + first + len(rows)) * row_bytes
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def finish(self) -> Tensor:
        """Return the whole tensor, none of it in memory."""
        self._mapping.flush()
        # Otherwise cached neighbouring pages would be mapped with each row that is read.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()
        return self.tensor

    def close(self) -> None:
        """Close the file; the tensor keeps its mapping."""
        self._file.close()


def release(tensor: Tensor) -> None:
    """Release the pages of a ``MappedTensor``'s tensor; they reload from its file. Ignore other tensors."""
    mapping = _MAPPINGS.get(tensor.data_ptr())
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def release_unwritten(tensor: Tensor) -> None:
    """Release the pages of a tensor that ``torch.load(mmap=True)`` mapped and that was not written to.

    A tensor in private memory, or one that was written to, would lose its contents.
    """
    storage = tensor.untyped_storage()
    # Only whole pages of the storage: the memory around it belongs to other objects.
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(start, end - start, _MADV_DONTNEED)
