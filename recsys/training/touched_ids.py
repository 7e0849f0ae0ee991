"""Which raw IDs get or lose rows while a model is trained.

Shape letters: N number of raw IDs, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.base.collectives import gather_rows, group_device
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.managed.hash_zch import HashZchManagedCollisionModule
from recsys.managed.module import ManagedCollisionModule, MCHManagedCollisionModule, VocabularyModule
from recsys.model_parallel import DistributedModelParallel, get_unwrapped_module
from recsys.sharding.plan.device_rows import table_path

# Subclasses of users may change owners without telling: all of theirs are returned each time.
_TELLING = (MCHManagedCollisionModule, HashZchManagedCollisionModule, VocabularyModule)
_LISTS = (MCHManagedCollisionModule, HashZchManagedCollisionModule)
_Lists = MCHManagedCollisionModule | HashZchManagedCollisionModule


@dataclass(frozen=True, kw_only=True)
class OwnedRows:
    """Raw IDs of a managed table, and the rows that they own now.

    Attributes:
        ids: ``[N]`` int64, ascending, each once.
        rows: ``[N]`` int64, the row of each; -1 for an ID that owns none.
        is_whole: Whether no other ID owns a row. Otherwise the others own what they owned before.
    """

    ids: Tensor
    rows: Tensor
    is_whole: bool


class _Log:
    """The raw IDs of this rank's part of a mapping that got or lost rows."""

    def __init__(self, module: _Lists) -> None:
        self.module = module
        self.is_divided = module.part is not None
        self._can_tell = type(module) in _TELLING
        self._parts: list[Tensor] = []
        self._num_ids = 0
        self.is_whole = False
        self.clear()
        self.remove = module.register_owner_hook(lambda module, ids: self._note(module, ids))

    def clear(self) -> None:
        self._parts, self._num_ids, self.is_whole = [], 0, not self._can_tell

    def mark_all(self) -> None:
        self._parts, self._num_ids, self.is_whole = [], 0, True

    def _note(self, module: ManagedCollisionModule, ids: Tensor | None) -> None:
        # Copies of the module have copies of the hook.
        if module is not self.module or self.is_whole:
            return
        if ids is None:
            self.mark_all()
            return
        self._parts.append(ids)
        self._num_ids += ids.numel()
        if self._num_ids > self.module.output_size():
            self._parts = [self._ids()]
            self._num_ids = self._parts[0].numel()
            if 2 * self._num_ids > self.module.output_size():
                self.mark_all()

    def _ids(self) -> Tensor:
        return torch.unique(torch.cat(self._parts)) if self._parts else torch.empty(0, dtype=torch.int64)

    def owned(self) -> tuple[Tensor, Tensor]:
        """Return the raw IDs, ascending, and the rows that they own, in host memory."""
        if self.is_whole:
            ids, rows = self.module.owners()
        else:
            ids = self._ids().to(self.module.device)
            rows = self.module.rows_owned(ids)
        return ids.cpu(), rows.cpu()


class TouchedIds:
    """Tracks the raw IDs of a model's managed tables that get or lose rows while it is trained.

    Args:
        model: The model; on several ranks, a ``DistributedModelParallel``.

    Attributes:
        names: The names in the model's state dict of the buffers that have an entry for each row.
    """

    def __init__(self, model: nn.Module) -> None:
        self._group = model.env.process_group if isinstance(model, DistributedModelParallel) else None
        self._logs: dict[str, _Log] = {}
        model = get_unwrapped_module(model)
        for path, part in model.named_modules():
            if not isinstance(part, BaseManagedCollisionEmbeddingCollection):
                continue
            inner = next(name for name, one in part.named_modules() if one is part.embedding_module)
            for table, module in part.managed_collision_collection.managed_collision_modules().items():
                if isinstance(module, _LISTS):
                    self._logs[table_path(f"{path}.{inner}" if path else inner, table)] = _Log(module)
        tracked = {id(log.module) for log in self._logs.values()}
        self.names = frozenset(
            f"{path}.{name}" if path else name
            for path, part in model.named_modules(remove_duplicate=False)
            if isinstance(part, _LISTS) and id(part) in tracked
            for name in part.part_buffers()
        )

    def owned(self, *, whole: bool = False) -> dict[str, OwnedRows]:
        """Return the raw IDs that got or lost rows since the last call. Every rank must call it, between two steps.

        Args:
            whole: Whether to return all that own rows.

        Returns:
            Of each managed table by its path, over all ranks, in host memory.
        """
        self._agree(whole=whole)
        found = {
            path: OwnedRows(ids=ids, rows=rows, is_whole=log.is_whole)
            for path, log in self._logs.items()
            for ids, rows in [log.owned()]
        }
        divided = [path for path, log in self._logs.items() if log.is_divided]
        if divided:
            found |= self._gathered({path: found[path] for path in divided})
        self.clear()
        return found

    def _agree(self, *, whole: bool) -> None:
        """Mark all IDs of a mapping that ranks share if one of them must return all of its own."""
        for log in self._logs.values():
            if whole:
                log.mark_all()
        divided = [log for log in self._logs.values() if log.is_divided]
        if whole or not divided:
            return
        assert self._group is not None
        flags = torch.tensor([log.is_whole for log in divided], dtype=torch.int64)
        flags = flags.to(group_device(self._group))
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        for log, flag in zip(divided, flags.tolist(), strict=True):
            if flag:
                log.mark_all()

    def _gathered(self, mine: dict[str, OwnedRows]) -> dict[str, OwnedRows]:
        """Return what all ranks know of mappings of which each holds a part, in one collective."""
        assert self._group is not None
        packed = torch.cat(
            [
                torch.stack([torch.full_like(owned.ids, number), owned.ids, owned.rows], dim=1)
                for number, owned in enumerate(mine.values())
            ]
        )
        every = torch.cat(gather_rows(packed.to(group_device(self._group)), self._group)).cpu()
        found = {}
        for number, (path, owned) in enumerate(mine.items()):
            _, ids, rows = every[every[:, 0] == number].unbind(dim=1)
            ids, order = ids.sort()
            found[path] = OwnedRows(ids=ids, rows=rows[order], is_whole=owned.is_whole)
        return found

    def clear(self) -> None:
        """Forget what was touched, on this rank."""
        for log in self._logs.values():
            log.clear()

    def close(self) -> None:
        """End the tracking: the model runs as without it."""
        for log in self._logs.values():
            log.remove()
