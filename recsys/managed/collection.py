"""ManagedCollisionCollection: the managed collision modules of several tables, applied to one batch.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, distributed, nn

from recsys.base.table_modules import TableModules
from recsys.configs import BaseEmbeddingConfig, check_tables, with_feature_names
from recsys.embedding import select_features
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.managed.module import ManagedCollisionModule
from recsys.managed.parts import Divisible, ask_owners
from recsys.ops import is_traced, joined


class ManagedCollisionCollection(nn.Module):
    """Maps the raw IDs of a batch to rows, table by table.

    The mapped batch has the tables' features in the tables' order, and no others. The IDs of tables without a managed
    collision module are not changed.

    Args:
        managed_collision_modules: The modules by table name. They are under
            ``_managed_collision_modules.<table>`` in state dicts.
        embedding_configs: The tables of the collection that gets the batch.
        need_preprocess: Whether raw IDs pass through the modules' ``input_hash_func``; False if they did already.

    Raises:
        ValueError: A module has no table, or another number of rows, or a feature of a table with a module is
            looked up in another table too: it could not be mapped for both.
    """

    def __init__(
        self,
        managed_collision_modules: Mapping[str, ManagedCollisionModule],
        embedding_configs: Sequence[BaseEmbeddingConfig],
        need_preprocess: bool = True,
    ) -> None:
        super().__init__()
        embedding_configs = with_feature_names(embedding_configs)
        check_tables(embedding_configs)
        self.need_preprocess = need_preprocess
        self._group: distributed.ProcessGroup | None = None
        self._features = list(dict.fromkeys(f for config in embedding_configs for f in config.feature_names))
        self._configs = list(embedding_configs)
        by_name = {config.name: config for config in embedding_configs}
        unknown = sorted(set(managed_collision_modules) - set(by_name))
        if unknown or not managed_collision_modules:
            raise ValueError(
                f"managed_collision_modules: got {unknown or 'none'}, expected some of the tables {sorted(by_name)}"
            )
        for name, module in managed_collision_modules.items():
            if module.output_size() != by_name[name].num_embeddings:
                raise ValueError(
                    f"managed_collision_modules[{name!r}]: got {module.output_size()} rows, expected "
                    f"{by_name[name].num_embeddings}, the table's num_embeddings"
                )
            for other in embedding_configs:
                shared = sorted(set(other.feature_names) & set(by_name[name].feature_names))
                if other.name != name and shared:
                    raise ValueError(
                        f"tables {name!r} and {other.name!r}: got features {shared} in both, expected the features "
                        "of a table with a managed collision module in that table alone: give the other table's a "
                        "name of their own"
                    )
        self._managed_collision_modules = TableModules(dict(managed_collision_modules))
        self._table_of = {f: name for name in managed_collision_modules for f in by_name[name].feature_names}

    def forward(self, features: KeyedJaggedTensor, mutate_miss_lengths: bool = True) -> KeyedJaggedTensor:
        """Replace raw IDs by rows; in training mode the modules learn from the batch first.

        Args:
            features: Any features; those of managed tables hold int32 or int64 raw IDs.
            mutate_miss_lengths: Has no effect: IDs without a row of their own are mapped to the last row.

        Raises:
            ValueError: In training mode, a feature of a managed table is missing; the IDs are not integers.
        """
        del mutate_miss_lengths
        if self.training:
            self._profile_here(features)
        own = self._own(features)
        return self._remapped(own, self._from_owners(own, learns=self.training))

    def profile(self, features: KeyedJaggedTensor) -> None:
        """Update the modules with a batch. Every module counts every batch, even without IDs of its own.

        Where ranks hold parts of a mapping, every rank must call it.

        Raises:
            ValueError: A feature of a managed table is missing; the IDs are not integers.
        """
        self._profile_here(features)
        self._from_owners(self._own(features), learns=True)

    def _profile_here(self, features: KeyedJaggedTensor) -> None:
        """Update the modules that hold whole mappings."""
        jagged = select_features(features, list(self._table_of))
        for table, module in self.managed_collision_modules().items():
            if module.part is None:
                module.profile_features(
                    {
                        name: self._preprocessed(module, _int64(jagged[name].values()))
                        for name, of in self._table_of.items()
                        if of == table
                    }
                )

    def _from_owners(self, own: KeyedJaggedTensor, *, learns: bool) -> dict[str, Tensor]:
        """Return the rows of the tables of whose mappings ranks hold parts, int64, by table."""
        divided = {t: m for t, m in self.managed_collision_modules().items() if m.part is not None}
        if not divided:
            return {}
        jagged = own.to_dict()
        batch = [
            {
                key: self._preprocessed(module, _int64(jagged[key].values()))
                for key in own.keys()  # noqa: SIM118  (not a dict)
                if self._table_of.get(key) == table
            }
            for table, module in divided.items()
        ]
        modules: list[Divisible] = []
        for module in divided.values():
            assert isinstance(module, Divisible)
            modules.append(module)
        assert self._group is not None
        return dict(zip(divided, ask_owners(modules, batch, self._group, learns=learns), strict=True))

    def _preprocessed(self, module: ManagedCollisionModule, ids: Tensor) -> Tensor:
        return module.preprocess(ids) if self.need_preprocess else ids

    def remap(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Replace raw IDs by rows, of the tables' features alone.

        Changes no state. Where this rank holds all mappings, it reads only shapes, and is traceable by FX; otherwise
        every rank must call it.

        Raises:
            ValueError: The IDs are no integers.
        """
        own = self._own(features)
        return self._remapped(own, self._from_owners(own, learns=False))

    def _remapped(self, features: KeyedJaggedTensor, known: Mapping[str, Tensor]) -> KeyedJaggedTensor:
        """Replace raw IDs of the tables' features by rows; those of some tables are known."""
        modules = self.managed_collision_modules()
        runs = [(t, list(keys)) for t, keys in groupby(features.keys(), self._table_of.get)]
        parts = [features.values()]
        if len(runs) > 1:
            jagged = features.to_dict()
            parts = [joined([jagged[key].values() for key in keys]) for _, keys in runs]
        rows = [
            part
            if table is None
            else known[table]
            if table in known
            else modules[table].remap(self._preprocessed(modules[table], _int64(part)))
            for (table, _), part in zip(runs, parts, strict=False)
        ]
        return KeyedJaggedTensor(
            features.keys(),
            joined(rows or parts),
            weights=features.weights_or_none(),
            lengths=features.lengths(),
            stride=features.stride(),
            stride_per_key_per_rank=features.stride_per_key_per_rank() or None,
            length_per_key=features.length_per_key_or_none(),
            inverse_indices=features.inverse_indices_or_none(),
        )

    def _own(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the tables' features alone, in their order."""
        at = features.index_per_key()
        own = [name for name in self._features if name in at]
        return features if features.keys() == own else features.permute([at[name] for name in own])

    def table_to_number_buckets(self) -> dict[str, int]:
        """Return the number of buckets of each module."""
        return {table: module.buckets() for table, module in self.managed_collision_modules().items()}

    def evict(self) -> dict[str, Tensor | None]:
        """Return each table's rows with a new owner since the last call; see ``ManagedCollisionModule.evict``."""
        return {table: module.evict() for table, module in self.managed_collision_modules().items()}

    def open_slots(self) -> dict[str, Tensor]:
        """Return the number of rows without an owner, ``[1]`` int64, by table."""
        return {table: module.open_slots() for table, module in self.managed_collision_modules().items()}

    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Set the group whose ranks decide together; None decides alone."""
        self._group = group
        for module in self.managed_collision_modules().values():
            module.set_process_group(group)

    def embedding_configs(self) -> list[BaseEmbeddingConfig]:
        """Return the tables."""
        return self._configs

    def table_of_feature(self) -> dict[str, str]:
        """Return the table of each feature of a managed table."""
        return self._table_of

    def managed_collision_modules(self) -> dict[str, ManagedCollisionModule]:
        """Return the module of each table."""
        return {
            table: cast(ManagedCollisionModule, self._managed_collision_modules[table])
            for table in self._managed_collision_modules
        }


def _int64(ids: Tensor) -> Tensor:
    if is_traced(ids):
        return ids
    if ids.is_floating_point() and ids.numel():
        raise ValueError(f"values: got dtype {ids.dtype}, expected int32 or int64")
    return ids.to(torch.int64)


def mapping_buffer_names(model: nn.Module) -> list[str]:
    """Return the names of all managed collision modules' buffers in a model.

    They are equal on all ranks and change equally, so DistributedDataParallel should ignore them
    (``_set_params_and_buffers_to_ignore_for_model``) and not broadcast them with each batch.
    """
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, ManagedCollisionModule)
        for name, _ in module.named_buffers()
    ]
