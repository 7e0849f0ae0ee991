"""Managed collisions in an export: graphs look raw IDs up in a mapping that is a part beside the rows.

Shape letters: N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from export.graph.modules import replace_modules
from export.graph.ranking import RankingFeatures
from recsys.artifact.mappings import MappingInfo
from recsys.embedding import FloatCollection
from recsys.errors import ExportError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels import operators
from recsys.kernels.bounds import StructureCheck
from recsys.managed.collection import ManagedCollisionCollection
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.managed.frozen import (
    FREEZABLE,
    FindRows,
    FrozenLookup,
    filled_slots,
    found_rows,
    freezable_modules,
    freezable_names,
    slot_tables,
)
from recsys.managed.slots import FullMappingError, placeholder
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.sharded import DistributedKeyedJaggedTensor

# Far more than an export's samples contain.
_MOST_KNOWN_IDS = 1 << 16


class FrozenCollisions(nn.Module):
    """Replaces a ManagedCollisionCollection in a graph: it maps IDs and never changes.

    It is in host memory, where the batch is split, for every target.

    Args:
        collection: The model's collection, which is not changed.
        slots: As ``FrozenLookup``.
        find_rows: As ``FrozenLookup``.
    """

    def __init__(
        self,
        collection: ManagedCollisionCollection,
        slots: Tensor | None = None,
        find_rows: FindRows = found_rows,
    ) -> None:
        super().__init__()
        self.structure = StructureCheck()
        self.lookup = FrozenLookup(collection, slots, find_rows)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Replace raw IDs by rows; parts that were already sent to devices are kept.

        Raises:
            ValueError: Lengths and values disagree, in eager mode. Under TorchScript it is a RuntimeError.
        """
        # Each part of a ranking form has its own lengths.
        if isinstance(features, RankingFeatures):
            return features.mapped(self.forward)
        if isinstance(features, DistributedKeyedJaggedTensor):
            # Checked when it was sent. The second mapping is usually unused, and TorchScript drops it.
            mapped: KeyedJaggedTensor = self.lookup(features)
            return DistributedKeyedJaggedTensor(mapped, features.inputs)
        # The lengths determine each ID's feature below.
        self.structure(features.lengths(), features.values())
        found: KeyedJaggedTensor = self.lookup(features)
        return found


@dataclass(frozen=True, kw_only=True)
class ManagedTables:
    """The managed collisions of a model.

    Attributes:
        mappings: Each ManagedCollisionCollection, by its path.
        rows_paths: The path of the collection with the rows of each mapping, by the mapping's path.
    """

    mappings: Mapping[str, ManagedCollisionCollection] = field(default_factory=dict)
    rows_paths: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def known_ids(self) -> Mapping[str, Tensor]:
        """By table path, int64 raw IDs that own rows; a spread sample if there are many."""
        found = {}
        for path, mapping in self.mappings.items():
            for table, module in freezable_modules(mapping).items():
                ids = module.owners()[0]
                found[table_path(self.rows_paths[path], table)] = ids[:: 1 + ids.numel() // _MOST_KNOWN_IDS]
        return found

    def frozen(self, *, with_ids: bool) -> dict[str, nn.Module]:
        """Return the replacements of the mappings in a graph, by path.

        Args:
            with_ids: Whether they hold the raw IDs; else graphs get them when they are loaded.
        """
        return {
            path: FrozenCollisions(mapping, self.slots[path] if with_ids else placeholder(num_buckets))
            for path, mapping, num_buckets in self._sizes()
        }

    def in_program(self) -> dict[str, nn.Module]:
        """Return the replacements of the mappings in a program, by path.

        They call a native operator where the native kernels are built; programs run only where they are.
        """
        find_rows = found_rows if operators.why_missing() else torch.ops.recsys_ops.mapped_rows
        return {
            path: FrozenCollisions(mapping, placeholder(num_buckets), find_rows)
            for path, mapping, num_buckets in self._sizes()
        }

    def _sizes(self) -> list[tuple[str, ManagedCollisionCollection, int]]:
        """Return the path, the mapping and the number of its buckets."""
        return [
            (path, mapping, info.num_buckets)
            for (path, mapping), info in zip(self.mappings.items(), self.infos, strict=True)
        ]

    @cached_property
    def slots(self) -> Mapping[str, Tensor]:
        """The buckets of each mapping, by its path.

        Raises:
            ExportError: A raw ID has no place.
        """
        found = {}
        for path, mapping in self.mappings.items():
            try:
                found[path] = filled_slots(freezable_modules(mapping))
            except FullMappingError as error:
                raise ExportError(f"{error}; give the table more rows") from None
        return found

    @cached_property
    def infos(self) -> tuple[MappingInfo, ...]:
        """The entries of the mappings in a manifest, in the order of ``slots``."""
        return tuple(
            MappingInfo(
                path=slots_path,
                part=f"mapping-{i}.bin",
                tables=tuple(
                    replace(table, name=table_path(self.rows_paths[path], table.name))
                    for table in slot_tables(freezable_modules(self.mappings[path]))
                ),
            )
            for i, (path, slots_path) in enumerate(self.slots_paths.items())
        )

    @cached_property
    def slots_paths(self) -> dict[str, str]:
        """The path in traced graphs of the buckets of each mapping, by the mapping's path."""
        return {
            path: f"model.{path}.lookup.slots" if path else "model.lookup.slots" for path in self.mappings
        }

    def learned(self) -> dict[str, nn.Module]:
        """Return the model's mappings, in eval mode, as the reference for frozen ones."""
        return {path: replace_modules(mapping, {}) for path, mapping in self.mappings.items()}


def find_managed(model: nn.Module, collections: Mapping[str, FloatCollection]) -> ManagedTables:
    """Return every managed table of a model.

    Args:
        model: Any module.
        collections: Its collections by path.

    Raises:
        ExportError: The tables of a mapping are not known, or its kind cannot be frozen.
    """
    path_of = {id(collection): path for path, collection in collections.items()}
    mappings: dict[str, ManagedCollisionCollection] = {}
    rows_path_of: dict[int, str] = {}
    owned: set[int] = set()
    for module in model.modules():
        if isinstance(module, BaseManagedCollisionEmbeddingCollection):
            mapping = module.managed_collision_collection
            owned.add(id(mapping))
            inner = module.embedding_module
            if id(inner) not in path_of:
                raise ExportError(
                    f"{type(module).__name__}: got a {type(inner).__name__} within, expected an unsharded "
                    "EmbeddingBagCollection or EmbeddingCollection"
                )
            rows_path_of[id(mapping)] = path_of[id(inner)]
            for table, managed in mapping.managed_collision_modules().items():
                if not isinstance(managed, FREEZABLE):
                    raise ExportError(
                        f"table {table!r}: got a {type(managed).__name__}, expected a {freezable_names()}: no "
                        "other kind can be frozen"
                    )
    for path, module in model.named_modules():
        if isinstance(module, ManagedCollisionCollection):
            if id(module) not in owned:
                raise ExportError(
                    f"{path!r}: got a ManagedCollisionCollection alone, expected it together with its tables in a "
                    "ManagedCollisionEmbeddingBagCollection or ManagedCollisionEmbeddingCollection: raw IDs and row "
                    "numbers could not be told apart"
                )
            mappings[path] = module
    rows_paths = {path: rows_path_of[id(mapping)] for path, mapping in mappings.items()}
    return ManagedTables(mappings=mappings, rows_paths=rows_paths)


def mapping_in_front(model: nn.Module, collection: nn.Module) -> nn.Module | None:
    """Return the module that maps raw IDs for a collection; None without a mapping."""
    for module in model.modules():
        if (
            isinstance(module, BaseManagedCollisionEmbeddingCollection)
            and module.embedding_module is collection
        ):
            return module.managed_collision_collection
    return None
