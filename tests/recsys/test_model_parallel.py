"""What moves to a rank's device when a model is sharded, and what stays in host memory.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from recsys import DistributedModelParallel, EmbeddingBagCollection
from recsys.managed import (
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.model_parallel import get_module, get_unsharded_module_names, get_unwrapped_module
from recsys.sharding.materialize import init_parameters, materialize
from recsys.sharding.plan.env import ShardingEnv
from recsys.train.stepping.ranks import ONE_RANK, process_group
from tests.support.helpers import bag, kjt_of

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
    materialize(sharded, ELSEWHERE, initializes=True)
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


class _Holds(nn.Module):
    """Parameters in a list, which the module itself initializes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ParameterList([nn.Parameter(torch.empty(2)) for _ in range(2)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for i, kernel in enumerate(self.kernels):
                kernel.fill_(i + 1.0)


class _Lacks(nn.Module):
    """A parameter that nothing initializes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2))


def test_a_module_initializes_what_it_holds() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "over": _Holds()})
    made = DistributedModelParallel(model).module.get_submodule("over")
    assert [float(kernel.detach().sum()) for kernel in made.parameters()] == [2.0, 4.0]


def test_layers_that_cannot_be_initialized_are_named() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "over": _Lacks()})
    with pytest.raises(ValueError, match="module 'over': _Lacks lies on the meta device and neither it"):
        DistributedModelParallel(model)


def test_layers_stay_on_the_meta_device_on_request() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "over": nn.Linear(2, 3)})
    sharded = DistributedModelParallel(model, init_parameters=False, init_data_parallel=False)
    assert [name for name, p in sharded.named_parameters() if p.is_meta] == ["over.weight", "over.bias"]
    assert all(not p.is_meta for name, p in sharded.named_parameters() if "bags" in name)
    init_parameters(sharded.module.get_submodule("over"), torch.device("cpu"))
    sharded.init_data_parallel()
    assert not any(p.is_meta for p in sharded.parameters())


def _model() -> nn.ModuleDict:
    sparse = nn.ModuleDict(
        {"bags": EmbeddingBagCollection([bag("t", 9, 16, ["f"])]), "norm": nn.LayerNorm(16)}
    )
    over = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 1))
    return nn.ModuleDict({"sparse": sparse, "over": over})


def test_wrappers_are_taken_off() -> None:
    model = _model()
    parallel = DistributedModelParallel(model)
    assert list(get_unwrapped_module(parallel)._modules) == ["sparse", "over"]
    assert get_module(model) is get_unwrapped_module(model) is model
    copies = DistributedDataParallel(nn.Linear(1, 1))
    assert get_module(copies) is copies
    assert isinstance(get_unwrapped_module(copies), nn.Linear)


def test_what_holds_no_sharded_collection() -> None:
    assert get_unsharded_module_names(DistributedModelParallel(_model()).module) == ["over", "sparse.norm"]
    assert get_unsharded_module_names(_model()) == []


def test_one_rank_without_a_group_trains_as_the_unsharded_model() -> None:
    model = nn.Sequential(EmbeddingBagCollection(TABLES))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = DistributedModelParallel(model, ShardingEnv.from_local(1, 0))
    assert trained.env.process_group is dist.group.WORLD
    batch = kjt_of({"f": [[1, 2]], "g": [[3]]})
    trained(batch).values().sum().backward()
    trained.fused_optimizer.step()
    for name, tensor in trained.state_dict().items():
        assert tensor.local_shards()[0].tensor.shape == expected[name].shape
    assert not torch.equal(
        trained.state_dict()["0.embedding_bags.t.weight"].local_shards()[0].tensor,
        expected["0.embedding_bags.t.weight"],
    )


def test_a_group_of_one_is_started_where_there_is_none() -> None:
    dist.destroy_process_group()
    env = ShardingEnv.from_local(1, 0).with_group()
    assert (dist.get_world_size(env.process_group), env.rank, env.device.type) == (1, 0, "cpu")
    assert env.with_group() is env


def test_parameters_and_buffers_are_those_of_the_unsharded_model() -> None:
    model = nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "norm": nn.BatchNorm1d(3)})
    parameters, buffers = ([n for n, _ in found()] for found in (model.named_parameters, model.named_buffers))
    sharded = DistributedModelParallel(model)
    assert [name for name, _ in sharded.bare_named_parameters()] == parameters
    assert [name for name, _ in sharded.named_buffers("m")] == [f"m.{name}" for name in buffers]
