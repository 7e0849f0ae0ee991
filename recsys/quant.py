"""Quantized collections, made from trained float ones.

Shape letters: B batch, D embedding dim, R rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.base.table_modules import TableModules
from recsys.configs import (
    BaseEmbeddingConfig,
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    QuantConfig,
    dtype_to_data_type,
    embedding_names,
)
from recsys.embedding import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
    EmbeddingCollection,
    EmbeddingCollectionInterface,
    FloatCollection,
    takes_weights,
    with_indices,
)
from recsys.errors import PlanError
from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.rows.format import HOST_ROW_ALIGNMENT, dequantize_rows
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import StoredTable, memory_writer, plan_blob, recut, store_table
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts, fill, table_path
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, check_plan
from recsys.sharding.plan.sharding_types import table_wise, without_replicas
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
    ShardedOptions,
)


def float_weights(module: FloatCollection) -> dict[str, Tensor]:
    """Return each table's ``[R, D]`` weight."""
    tables = module.embedding_bags if isinstance(module, EmbeddingBagCollection) else module.embeddings
    return {table.name: cast(Tensor, tables[table.name].weight) for table in float_tables(module)}


def float_tables(module: FloatCollection) -> Sequence[BaseEmbeddingConfig]:
    """Return the collection's tables."""
    if isinstance(module, EmbeddingBagCollection):
        return module.embedding_bag_configs()
    return module.embedding_configs()


def column_cuts(sharding: ParameterSharding) -> tuple[tuple[int, int], ...]:
    """Return the column blocks of a plan."""
    return tuple(sorted({shard.columns for shard in sharding.shards}))


def stored_table(
    table: BaseEmbeddingConfig, path: str, sharding: ParameterSharding, id_policy: IdPolicy
) -> StoredTable:
    """Return the stored form of a table of a collection at ``path``."""
    return StoredTable(
        name=table_path(path, table.name),
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        data_type=table.data_type,
        column_cuts=column_cuts(sharding),
        zero_row=id_policy is IdPolicy.ZERO,
    )


def _types_of(config: QuantConfig | None) -> tuple[DataType, dict[str, DataType]]:
    """Return the rows' data type, and those of named tables."""
    if config is None:
        return DataType.INT8, {}
    by_table = getattr(config, "per_table_weight_dtype", None) or {}
    named = {name: dtype_to_data_type(dtype) for name, dtype in by_table.items()}
    return dtype_to_data_type(config.weight().dtype), named


class _StoredRows(nn.Module):
    """One table's rows, ``weight`` ``[R, row_bytes]`` uint8: a view into the collection's blob."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


class QuantCollection(nn.Module):
    """The base of the quantized collections: stored rows, on one device or sharded."""

    _sharded_type: type[ShardedCollection]
    _rows_name: str
    _need_indices = False

    def __init__(
        self,
        tables: Sequence[BaseEmbeddingConfig],
        layout: BlobLayout,
        blob: Tensor,
        options: ShardedOptions,
    ) -> None:
        super().__init__()
        self._tables = list(tables)
        self._layout = layout
        self._blob = blob
        self._options = options
        rows = {
            table.name: _StoredRows(layout.find(table.name, 0, 0).rows(blob)[: table.num_embeddings])
            for table in tables
        }
        self.add_module(self._rows_name, TableModules(rows))
        whole = {table.name: table_wise(table, 0) for table in tables}
        host = DeviceRows(device=torch.device("cpu"), layout=layout, rows=blob)
        self.sharded = self._sharded_type.over_devices(tables, whole, [host], options)

    @classmethod
    def _from_float(
        cls,
        module: FloatCollection,
        data_type: DataType | None,
        table_data_types: Mapping[str, DataType] | None,
        row_alignment: int,
        options: ShardedOptions | None,
    ) -> Any:
        config = getattr(module, "qconfig", None)
        if options is None:
            options = ShardedOptions(
                output_dtype=torch.float32 if config is None else config.activation().dtype
            )
        # The blob belongs to the collection, so its tables' names need no path.
        options = replace(options, path="", is_weighted=takes_weights(module))
        known = {table.name for table in float_tables(module)}
        unknown = sorted(set(table_data_types or {}) - known)
        if unknown:
            raise ValueError(
                f"table_data_types: got unknown tables {unknown}, expected some of {sorted(known)}"
            )
        default, named = _types_of(config)
        named = {} if data_type is not None else named
        named |= table_data_types or {}
        tables = [replace(t, data_type=named.get(t.name, data_type or default)) for t in float_tables(module)]
        stored = [
            stored_table(t, "", table_wise(t, 0), options.id_policies.get(t.name, IdPolicy.REJECT))
            for t in tables
        ]
        layout = plan_blob(stored, row_alignment)
        blob = torch.zeros(layout.num_bytes, dtype=torch.uint8)
        weights = float_weights(module)
        for table in stored:
            store_table(weights[table.name].detach().cpu(), table, layout, memory_writer(blob))
        return cls(tables, layout, blob, options)

    def tables(self) -> list[BaseEmbeddingConfig]:
        """Return the tables, with the data types of their rows."""
        return self._tables

    def output_dtype(self) -> torch.dtype:
        """Return the dtype of the outputs."""
        return self._options.output_dtype

    @property
    def device(self) -> torch.device:
        """Where the rows lie."""
        return self._blob.device

    def shard(self, plan: Mapping[str, ParameterSharding], env: ShardingEnv) -> Any:
        """Return the same tables, sharded by a plan; whole rows in host memory are shared.

        Raises:
            PlanError: The plan does not fit the tables or the devices, or the IDs should come with the rows.
        """
        if self._need_indices:
            raise PlanError(
                "need_indices: got True, expected False: a sharded collection returns rows without their IDs, which "
                "the batch holds"
            )
        check_plan(self._tables, plan, env.world_size)
        plan = without_replicas(self._tables, plan)
        layout, blob = self._recut(plan)
        if all(device.type == "cpu" for device in env.devices):
            ranks = [DeviceRows(device=device, layout=layout, rows=blob) for device in env.devices]
        else:
            ranks = fill(layout, blob, device_layouts(layout, {"": plan}, env.devices), env.devices)
        return self._sharded_type.over_devices(self._tables, plan, ranks, self._options)

    def _recut(self, plan: Mapping[str, ParameterSharding]) -> tuple[BlobLayout, Tensor]:
        if all(len(column_cuts(sharding)) == 1 for sharding in plan.values()):
            return self._layout, self._blob
        try:
            return recut(self._layout, self._blob, {name: column_cuts(s) for name, s in plan.items()})
        except ValueError as error:
            raise PlanError(str(error)) from None

    def _dequantized(self, table: BaseEmbeddingConfig) -> Tensor:
        block = self._layout.find(table.name, 0, 0)
        return dequantize_rows(block.rows(self._blob)[: table.num_embeddings], block.row_format)


class QuantEmbeddingBagCollection(QuantCollection):
    """Pooled embeddings from stored rows, on FBGEMM's int-nbit lookup.

    The state dict's names are ``embedding_bags.<table>.weight``, ``[R, row_bytes]`` uint8 (see recsys/rows/format.py).
    """

    _sharded_type = ShardedEmbeddingBagCollection
    _rows_name = "embedding_bags"

    @classmethod
    def from_float(
        cls,
        module: EmbeddingBagCollection,
        use_precomputed_fake_quant: bool = False,
        *,
        data_type: DataType | None = None,
        table_data_types: Mapping[str, DataType] | None = None,
        row_alignment: int = HOST_ROW_ALIGNMENT,
        options: ShardedOptions | None = None,
    ) -> QuantEmbeddingBagCollection:
        """Quantize a trained collection, which is not changed.

        Args:
            module: The trained collection. Its ``qconfig`` attribute, if it has one (``QuantConfig``), says which
                types tables and outputs get where the arguments below do not.
            use_precomputed_fake_quant: Part of torch's protocol for quantized modules; has no effect on tables.
            data_type: FP32, FP16, INT8, INT4 or INT2, of every table that is not named; INT8 by default.
            table_data_types: Data types by table.
            row_alignment: Alignment in bytes; 1 in host memory, 16 for rows that go to CUDA unchanged.
            options: Output dtype, ID policies, bounds check.

        Raises:
            ValueError: A table is unknown, or a row cannot be stored faithfully in its type.
        """
        del use_precomputed_fake_quant
        made: QuantEmbeddingBagCollection = cls._from_float(
            module, data_type, table_data_types, row_alignment, options
        )
        return made

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the tables, with the data types of their rows."""
        return cast(list[EmbeddingBagConfig], self._tables)

    def is_weighted(self) -> bool:
        """Return whether every ID comes with a weight."""
        return self._options.is_weighted

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Return ``[B, sum of D]``, one key per (feature, table) in the tables' order.

        Raises:
            ValueError: A feature or the weights are missing, or an ID is out of range (mode FATAL).
        """
        pooled: KeyedTensor = self.sharded(features)
        return pooled

    def dequantize(self) -> EmbeddingBagCollection:
        """Return a float collection with the same predictions."""
        tables = [replace(cast(EmbeddingBagConfig, t), data_type=DataType.FP32) for t in self._tables]
        module = EmbeddingBagCollection(tables, is_weighted=self._options.is_weighted, device="meta")
        state = {f"embedding_bags.{t.name}.weight": self._dequantized(t) for t in self._tables}
        module.load_state_dict(state, assign=True)
        return module


class QuantEmbeddingCollection(QuantCollection):
    """Sequence embeddings from stored rows, on FBGEMM's int-nbit lookup.

    The state dict's names are ``embeddings.<table>.weight``, ``[R, row_bytes]`` uint8 (see recsys/rows/format.py).
    """

    _sharded_type = ShardedEmbeddingCollection
    _rows_name = "embeddings"

    @classmethod
    def from_float(
        cls,
        module: EmbeddingCollection,
        use_precomputed_fake_quant: bool = False,
        *,
        data_type: DataType | None = None,
        table_data_types: Mapping[str, DataType] | None = None,
        row_alignment: int = HOST_ROW_ALIGNMENT,
        options: ShardedOptions | None = None,
    ) -> QuantEmbeddingCollection:
        """Quantize a trained collection; as ``QuantEmbeddingBagCollection.from_float``."""
        del use_precomputed_fake_quant
        made: QuantEmbeddingCollection = cls._from_float(
            module, data_type, table_data_types, row_alignment, options
        )
        made._need_indices = module.need_indices()
        return made

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """Return the tables, with the data types of their rows."""
        return cast(list[EmbeddingConfig], self._tables)

    def embedding_dim(self) -> int:
        """Return D."""
        return self._tables[0].embedding_dim

    def embedding_names_by_table(self) -> list[list[str]]:
        """Return the outputs' names, table by table."""
        return embedding_names(self._tables)

    def need_indices(self) -> bool:
        """Return whether the IDs come with the rows, as weights."""
        return self._need_indices

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return for each (feature, table) a JaggedTensor with values ``[N of the feature, D]``.

        Raises:
            ValueError: A feature is missing, or an ID is out of range (mode FATAL).
        """
        found: dict[str, JaggedTensor] = self.sharded(features)
        return with_indices(found, self._tables, features) if self._need_indices else found

    def dequantize(self) -> EmbeddingCollection:
        """Return a float collection with the same outputs."""
        tables = [replace(cast(EmbeddingConfig, t), data_type=DataType.FP32) for t in self._tables]
        module = EmbeddingCollection(tables, device="meta", need_indices=self._need_indices)
        state = {f"embeddings.{t.name}.weight": self._dequantized(t) for t in self._tables}
        module.load_state_dict(state, assign=True)
        return module


EmbeddingBagCollectionInterface.register(QuantEmbeddingBagCollection)
EmbeddingCollectionInterface.register(QuantEmbeddingCollection)
