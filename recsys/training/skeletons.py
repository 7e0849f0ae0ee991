"""A trained model without its tables' memory and without its ranks, to be sent to another process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.managed.hash_zch import HashZchManagedCollisionModule
from recsys.managed.mapping import FREE
from recsys.managed.module import ManagedCollisionModule, MCHManagedCollisionModule
from recsys.managed.probing import FREE_ROW
from recsys.model_parallel import get_unwrapped_module
from recsys.quant import float_weights
from recsys.sharding.mappings import make_mappings_whole
from recsys.sharding.sharded import ShardedCollection, ShardedEmbeddingBagCollection


def skeleton_of(model: nn.Module) -> nn.Module:
    """Return a copy of a model with unsharded tables on the meta device; the model is not changed.

    Mappings of raw IDs that ranks share are whole, too, and on the meta device.

    Args:
        model: The model, such as a ``DistributedModelParallel``.
    """
    model = get_unwrapped_module(model)
    memo: dict[int, Any] = {}
    for part in model.modules():
        if isinstance(part, ShardedCollection):
            memo[id(part)] = _unsharded(part)
        elif isinstance(part, (EmbeddingBagCollection, EmbeddingCollection)):
            for weight in float_weights(part).values():
                memo[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
        elif isinstance(part, (DistributedDataParallel, FullyShardedDataParallel)):
            raise TypeError(f"model: got a {type(part).__name__} inside it, expected one around it or none")
        # Groups of ranks are of this process.
        memo |= {id(held): None for held in vars(part).values() if isinstance(held, dist.ProcessGroup)}
    made: nn.Module = copy.deepcopy(model, memo)
    make_mappings_whole(made)
    for part in made.modules():
        if isinstance(part, (EmbeddingBagCollection, EmbeddingCollection)):
            # Such as that of TouchedRows.
            part._forward_pre_hooks.clear()
            part._load_state_dict_post_hooks.clear()
        elif isinstance(part, BaseManagedCollisionEmbeddingCollection):
            part._hooks.clear()
        elif isinstance(part, ManagedCollisionModule):
            part._owner_hooks.clear()
    return made


def _unsharded(collection: ShardedCollection) -> nn.Module:
    tables: list[Any] = list(collection.layout.tables)
    if isinstance(collection, ShardedEmbeddingBagCollection):
        made: nn.Module = EmbeddingBagCollection(
            tables, is_weighted=collection.pair_ids.is_weighted, device=torch.device("meta")
        )
    else:
        made = EmbeddingCollection(tables, device=torch.device("meta"))
    return made.train(collection.training)


def pickled(model: nn.Module) -> bytes:
    """Return a skeleton as bytes.

    Raises:
        ValueError: A class is of the program itself, which another process cannot import, or holds what cannot be
            pickled.
    """
    local = {type(part).__qualname__ for part in model.modules() if type(part).__module__ == "__main__"}
    if local:
        raise ValueError(
            f"model: got {sorted(local)[:4]}, which are classes of the program that was started; expected classes of "
            "a module: publishing runs in a process of its own, which imports them"
        )
    try:
        return pickle.dumps(model, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # objects of users can raise anything
        raise ValueError(
            f"model: cannot be sent to the process that publishes: {type(error).__name__}: {error}; pass exported="
        ) from error


def with_weights(skeleton: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """Give a skeleton its dense weights, and tables of zeros that take no memory.

    Args:
        skeleton: The result of ``skeleton_of``, or a model on the meta device.
        state: Its state dict without tables, and perhaps without mappings: these know no raw ID then.

    Raises:
        RuntimeError: A name or a shape does not fit.
    """
    expected = skeleton.state_dict()
    fills = {
        f"{path}.{name}" if path else name: fill
        for path, part in skeleton.named_modules(remove_duplicate=False)
        for name, fill in _without_owners(part).items()
    }
    others = {
        name: torch.full((1,) * weight.dim(), fills.get(name, 0), dtype=weight.dtype).expand(weight.shape)
        for name, weight in expected.items()
        if name not in state
    }
    skeleton.load_state_dict({**state, **others}, strict=True, assign=True)
    return skeleton


def _without_owners(module: nn.Module) -> dict[str, int]:
    """Return the number that fills each buffer of a mapping without raw IDs, where it is not 0."""
    if isinstance(module, MCHManagedCollisionModule):
        return {"raw_ids": FREE, "rows": module.output_size() - 1}
    if isinstance(module, HashZchManagedCollisionModule):
        return dict.fromkeys(("_hash_zch_identities", "_hash_zch_metadata"), FREE_ROW)
    return {}
