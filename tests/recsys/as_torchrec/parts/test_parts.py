"""What stands for names that only TorchRec code uses."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import distributed, nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

from recsys.as_torchrec.parts import evictions, movielens
from recsys.as_torchrec.parts.copying import CopyableMixin, copy_to_device
from recsys.as_torchrec.parts.state_dicts import (
    add_prefix_to_state_dict,
    append_prefix,
    filter_state_dict,
    state_dict_all_gather_keys,
    state_dict_gather,
    state_dict_to_device,
)
from recsys.configs import DataType, EmbeddingBagConfig
from recsys.embedding import EmbeddingBagCollection
from recsys.modules.copying import ModuleCopyMixin, ModuleNoCopyMixin
from tests.support.ranks import run_ranks

META = torch.device("meta")


class Moves(ModuleCopyMixin, nn.Linear):
    """Says itself that it moves."""


class Stays(ModuleNoCopyMixin, nn.Linear):
    """Says itself that it stays."""


class Model(CopyableMixin):
    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.over.weight
        self.norm = nn.ModuleList([nn.BatchNorm1d(2)])
        self.stays = nn.ModuleDict({"in": Stays(2, 2)})
        self.moves = Moves(2, 2)
        self.over.bias.requires_grad = False
        self.register_buffer("scratch", torch.ones(1), persistent=False)


def test_a_copy_on_another_device_leaves_the_module_alone() -> None:
    model = Model()
    before = copy.deepcopy(model.state_dict())
    copied = model.copy(META)
    assert isinstance(copied, Model)
    assert {name: tensor.device.type for name, tensor in copied.state_dict().items()} == {
        name: "cpu" if name.startswith("stays.") else "meta" for name in before
    }
    assert copied.scratch.is_meta
    assert copied.over.weight is copied.tied.weight
    assert not copied.over.bias.requires_grad
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_copy_on_the_same_device_has_weights_of_its_own() -> None:
    model = Model()
    copied = copy_to_device(model, torch.device("cpu"), torch.device("cpu"))
    assert isinstance(copied, Model)
    with torch.no_grad():
        copied.over.weight.fill_(7)
    assert not model.over.weight.eq(7).any()
    assert list(copied.state_dict()) == list(model.state_dict())


def test_tensors_of_other_devices_stay() -> None:
    model = nn.ModuleDict({"here": nn.Linear(1, 1), "there": nn.Linear(1, 1, device="meta")})
    copied = copy_to_device(model, META, torch.device("meta"))
    assert [tensor.device.type for tensor in copied.parameters()] == ["cpu", "cpu", "meta", "meta"]


def _on_each_rank(rank: int, world_size: int) -> None:
    assert world_size == 2
    group = distributed.group.WORLD
    assert group is not None
    own = torch.arange(4.0).view(2, 2) + 4 * rank
    shard = Shard.from_tensor_and_offsets(own, [2 * rank, 0], rank)
    table = ShardedTensor._init_from_local_shards([shard], [4, 2])
    state = {"table": table, "bias": torch.full((2,), 3.0)} | ({"extra": torch.ones(1)} if rank else {})
    assert state_dict_all_gather_keys(state, group) == ["bias", "extra", "table"]
    full = {"table": torch.zeros(4, 2, dtype=torch.float64), "bias": torch.zeros(2)}
    state_dict_gather(state, full)
    if rank == 0:
        assert torch.equal(full["table"], torch.arange(8.0, dtype=torch.float64).view(4, 2))
    assert full["bias"].tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match=r"src\['other'\]: got NoneType, expected a tensor"):
        state_dict_gather(state, {"other": torch.zeros(1)})
    both = {"table": table, "bias": torch.ones(2)}
    moved = state_dict_to_device(both, group, torch.device("cpu"))
    assert list(moved) == ["bias", "table"]
    assert isinstance(moved["table"], ShardedTensor)
    assert torch.equal(moved["table"].local_shards()[0].tensor, own)


def test_state_dicts_of_ranks() -> None:
    run_ranks(2, _on_each_rank)


def test_movielens_columns_are_read_by_their_types() -> None:
    row = ["1", "31", "2.5", "1260759144", "Dangerous Minds (1995)", "Drama"]
    values = [caster(text) for caster, text in zip(movielens.COLUMN_TYPE_CASTERS, row, strict=True)]
    assert dict(zip(movielens.DEFAULT_COLUMN_NAMES, values, strict=True)) == {
        "userId": 1,
        "movieId": 31,
        "rating": 2.5,
        "timestamp": 1260759144,
        "title": "Dangerous Minds (1995)",
        "genres": "Drama",
    }
    assert movielens.safe_cast("", int, 0) == 0


def test_policies_of_inference_follow_those_of_training() -> None:
    policy = evictions.FeatureScoreBasedEvictionPolicy(
        training_id_keep_count=9, eviction_ttl_mins=5, enable_auto_feature_score_collection=True
    )
    assert (policy.max_inference_id_num_per_rank, policy.inference_eviction_ttl_mins) == (9, 5)
    assert (policy.inference_eviction_feature_score_threshold, policy.feature_score_mapping) == (0, {})
    assert evictions.CountBasedEvictionPolicy(eviction_threshold=3).inference_eviction_threshold == 3
    assert evictions.TimestampBasedEvictionPolicy(eviction_ttl_mins=2).inference_eviction_ttl_mins == 2
    both = evictions.CountTimestampMixedEvictionPolicy(inference_eviction_threshold=1)
    assert (both.inference_eviction_threshold, both.inference_eviction_ttl_mins) == (1, 1440)
    assert (
        evictions.FeatureL2NormBasedEvictionPolicy(eviction_threshold=0.5).inference_eviction_threshold == 0.5
    )


@pytest.mark.parametrize(("data_type", "length"), [(DataType.FP32, 4), (DataType.FP16, 8)])
def test_headers_of_rows_are_16_bytes(data_type: DataType, length: int) -> None:
    policy = evictions.NoEvictionPolicy()
    policy.init_metaheader_config(data_type, 8)
    policy.init_metaheader_config(DataType.INT8, 16)
    assert (policy.get_meta_header_len(), policy.get_embedding_dim()) == (length, 8)


def test_a_table_with_a_policy_is_refused() -> None:
    table = EmbeddingBagConfig(
        name="t",
        embedding_dim=8,
        num_embeddings=9,
        feature_names=["f"],
        virtual_table_eviction_policy=evictions.FeatureScoreBasedEvictionPolicy(),
    )
    with pytest.raises(ValueError, match=r"virtual_table_eviction_policy: got .*, expected None"):
        EmbeddingBagCollection(tables=[table])


def test_a_name_below_a_prefix() -> None:
    assert [append_prefix(*pair) for pair in (("a", "b"), ("", "b"), ("a", ""))] == ["a.b", "b", "a"]


def test_what_lies_below_a_name() -> None:
    state = OrderedDict([("a.b", 1), ("a.c.a.d", 2), ("ab.c", 3), ("a", 4)])
    assert filter_state_dict(state, "a") == OrderedDict([("b", 1), ("c.a.d", 2)])


def test_a_prefix_before_all_names() -> None:
    state = {"b": 1, "a": 2}
    add_prefix_to_state_dict(state, "x.")
    assert state == {"x.a": 2, "x.b": 1}
