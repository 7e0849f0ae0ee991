"""What moves to a rank's device when a model is sharded, and what stays in host memory.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from recsys import DistributedModelParallel, EmbeddingBagCollection
from recsys.managed import (
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.model_parallel import _materialize
from recsys.train.ranks import ONE_RANK, process_group
from tests.support.helpers import bag

TABLES = [bag("t", 9, 16, ["f"]), bag("u", 7, 16, ["g"], "MEAN")]
# A device that every host has, for what is moved away from "cpu".
ELSEWHERE = torch.device("meta")


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    with process_group(ONE_RANK):
        yield


def _managed() -> ManagedCollisionEmbeddingBagCollection:
    mapping = MCHManagedCollisionModule(9, None, LFU_EvictionPolicy(), eviction_interval=1)
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(TABLES), ManagedCollisionCollection({"t": mapping}, TABLES)
    )


def _moved(model: nn.Module) -> list[str]:
    """The names of what leaves host memory."""
    sharded = DistributedModelParallel(model).module
    _materialize(sharded, ELSEWHERE, initializes=True)
    tensors: dict[str, Tensor] = {**dict(sharded.named_parameters()), **dict(sharded.named_buffers())}
    return [name for name, tensor in tensors.items() if tensor.is_meta]


def test_constants_of_a_sharded_collection_stay() -> None:
    assert _moved(nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES)})) == []


def test_constants_of_a_collection_that_is_the_model_stay() -> None:
    assert _moved(EmbeddingBagCollection(TABLES)) == []


def test_mappings_of_raw_ids_stay() -> None:
    assert _moved(nn.ModuleDict({"managed": _managed()})) == []


def test_layers_move_and_stay_trained() -> None:
    model = nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "norm": nn.BatchNorm1d(4)})
    model["norm"].bias.requires_grad = False
    moved = _moved(model)
    assert moved == [
        f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]
    assert [p.requires_grad for p in model["norm"].parameters()] == [True, False]
