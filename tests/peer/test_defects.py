"""What goes wrong in TorchRec 1.8's way to inference, and what is right here.

``TestOurs`` runs without TorchRec, one test for each defect; ``TestTheirs`` shows the ones that are cheap and safe to
show, so that the list is dropped where it stops being true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import (
    DataType,
    EmbeddingBagCollection,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
)
from recsys.artifact.load import load_artifact
from recsys.inputs.signature import Output, Signature, SparseInput, TableUse
from recsys.quant import QuantEmbeddingBagCollection
from recsys.scripting.torchscript import operators
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from serve.client.packing import build_request
from serve.config.models import BatchLimits
from serve.engine.reference.request_check import RequestChecker
from tests.support.helpers import bag, kjt_of
from tests.support.reads import CountReads

TABLES = [bag("t", 40, 64, ["a"]), bag("u", 30, 64, ["b"], "MEAN"), bag("v", 20, 64, ["c"])]
BAGS = {"a": [[1, 39], [2]], "b": [[29, 3], [4, 5, 6]], "c": [[7], [19, 8]]}
MIXED = {"t": DataType.INT8, "u": DataType.FP16, "v": DataType.INT4}
ON_TWO = ShardingEnv.over_devices(["cpu", "cpu"])


def trained() -> EmbeddingBagCollection:
    torch.manual_seed(0)
    made = EmbeddingBagCollection(TABLES)
    for weight in made.parameters():
        nn.init.normal_(weight)
    return made


def quantized(**kinds: DataType) -> QuantEmbeddingBagCollection:
    return QuantEmbeddingBagCollection.from_float(trained(), table_data_types=kinds)


PLANS: dict[str, dict[str, ParameterSharding]] = {
    "table-wise": {t.name: table_wise(t, i % 2) for i, t in enumerate(TABLES)},
    "column-wise": {t.name: column_wise(t, [1, 0]) for t in TABLES},
    "row-wise": {t.name: row_wise(t, [1, 0]) for t in TABLES},
}


class TestOurs:
    @pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
    def test_1_a_machine_without_a_gpu_can_shard(self, plan: dict[str, ParameterSharding]) -> None:
        answer = quantized().shard(plan, ON_TWO)(kjt_of(BAGS))
        assert answer.values().device.type == "cpu"
        torch.testing.assert_close(answer.values(), quantized()(kjt_of(BAGS)).values())

    def test_2_a_bare_collection_is_quantized(self, tmp_path: Path) -> None:
        module = trained()
        report = export_model(module, tmp_path / "bare", ExportConfig())
        assert [t.data_type for t in report.tables] == ["INT8"] * 3
        assert [t.bytes_after for t in report.tables] == [40 * 68, 30 * 68, 20 * 68]
        artifact = load_artifact(tmp_path / "bare", scripted=True)
        assert operators(artifact.module)["fbgemm::int_nbit_split_embedding_codegen_lookup_function"] > 0
        batch = kjt_of(BAGS)
        outputs = artifact.forward(batch.lengths(), batch.values())
        expected = quantized()(batch)
        assert list(outputs) == expected.keys()
        assert all(torch.equal(outputs[name], expected[name]) for name in outputs)

    @pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
    def test_3_sharding_keeps_the_trained_weights(self, plan: dict[str, ParameterSharding]) -> None:
        module = EmbeddingBagCollection(TABLES)
        with torch.no_grad():
            for k, weight in enumerate(module.parameters()):
                weight.copy_((100.0 * k + torch.arange(weight.shape[0])).unsqueeze(1).expand_as(weight))
        sharded = QuantEmbeddingBagCollection.from_float(module).shard(plan, ON_TWO)
        answer = sharded(kjt_of(BAGS))
        assert [answer[key].tolist() for key in "abc"] == [
            [[40.0] * 64, [2.0] * 64],
            [[116.0] * 64, [105.0] * 64],
            [[207.0] * 64, [427.0] * 64],
        ]

    def test_4_column_wise_outputs_are_as_wide_as_the_tables(self) -> None:
        module = QuantEmbeddingBagCollection.from_float(trained(), row_alignment=16)
        assert module.state_dict()["embedding_bags.t.weight"].shape == (40, 80)
        answer = module.shard(PLANS["column-wise"], ON_TWO)(kjt_of(BAGS))
        assert answer.values().shape == (2, 3 * 64)
        assert answer.length_per_key() == [64, 64, 64]

    def test_5_row_wise_means_are_right_where_a_bag_spans_shards(self) -> None:
        module = EmbeddingBagCollection([bag("t", 4, 8, ["a"], "MEAN")])
        with torch.no_grad():
            next(module.parameters()).copy_(torch.tensor([0.0, 1.0, 2.0, 4.0]).unsqueeze(1).expand(4, 8))
        table = module.embedding_bag_configs()[0]
        sharded = QuantEmbeddingBagCollection.from_float(module).shard({"t": row_wise(table, [0, 1])}, ON_TWO)
        answer = sharded(kjt_of({"a": [[0, 1, 2, 3], [3, 3, 0, 0], [2, 1, 1, 0]]}))
        assert answer.values()[:, 0].tolist() == [1.75, 2.0, 1.0]

    @pytest.mark.parametrize("first", ["abc", "cab"])
    def test_6_features_in_any_order_after_any_other(self, first: str) -> None:
        module = quantized()
        expected = trained_answer()
        for order in (first, "abc", "bca", "cba"):
            answer = module(kjt_of({key: BAGS[key] for key in order}))
            assert answer.keys() == ["a", "b", "c"]
            torch.testing.assert_close(answer.values(), expected.values(), rtol=0.05, atol=0.1)

    def test_7_sums_and_means_keep_the_order_of_keys(self) -> None:
        assert quantized()(kjt_of(BAGS)).keys() == trained_answer().keys() == ["a", "b", "c"]

    @pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
    def test_8_mixed_row_types_shard(self, plan: dict[str, ParameterSharding]) -> None:
        module = quantized(**MIXED)
        answer = module.shard(plan, ON_TWO)(kjt_of(BAGS))
        torch.testing.assert_close(answer.values(), module.dequantize()(kjt_of(BAGS)).values())

    @pytest.mark.parametrize("bad", [20, 21, 10**12, -1])
    def test_9_ids_are_checked_without_being_asked_to(self, bad: int) -> None:
        for module in (quantized(), quantized().shard(PLANS["row-wise"], ON_TWO)):
            with pytest.raises(ValueError, match=rf"feature 'c' got ID {bad} .*expected 0 <= ID < 20"):
                module(kjt_of(BAGS | {"c": [[1], [bad]]}))

    def test_10_an_empty_batch_is_one_and_a_missing_key_is_named(self) -> None:
        for module in (trained(), quantized(), quantized().shard(PLANS["column-wise"], ON_TWO)):
            assert module(kjt_of({"a": [], "b": [], "c": []})).values().shape == (0, 192)
            with pytest.raises(ValueError, match=r"features: missing \['b'\]"):
                module(kjt_of({"a": [[1]], "c": [[2]]}))

    def test_11_lengths_that_miss_the_values_are_noticed(self) -> None:
        batch = KeyedJaggedTensor(["a", "b", "c"], [1, 2, 3], lengths=[1, 1, 2])
        with pytest.raises(ValueError, match="lengths: got a sum of 4 for 3 values"):
            batch.validate()
        for module in (quantized(), quantized().shard(PLANS["row-wise"], ON_TWO)):
            with pytest.raises(ValueError, match="lengths: got a sum of 4 for 3 values"):
                module(batch)

    @pytest.mark.parametrize(("dim", "kind"), [(63, DataType.INT8), (10, DataType.INT4), (1, DataType.INT2)])
    def test_12_odd_dims_are_quantized(self, dim: int, kind: DataType) -> None:
        module = EmbeddingBagCollection([bag("t", 9, dim, ["a"])])
        made = QuantEmbeddingBagCollection.from_float(module, data_type=kind)
        answer = made(kjt_of({"a": [[1, 8], []]})).values()
        assert answer.shape == (2, dim)
        torch.testing.assert_close(answer, made.dequantize()(kjt_of({"a": [[1, 8], []]})).values())

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_13_ids_of_either_width_are_read_as_what_they_are(self, dtype: torch.dtype) -> None:
        batch = kjt_of(BAGS)
        given = KeyedJaggedTensor(batch.keys(), batch.values().to(dtype), lengths=batch.lengths().to(dtype))
        assert torch.equal(quantized()(given).values(), quantized()(batch).values())

    def test_13_the_wire_has_one_type_for_ids_and_refuses_others(self) -> None:
        requests = [
            build_request({}, {"a": ids})
            for ids in (
                [[1, 39], [2]],
                kjt_of({"a": [[1, 39], [2]]}),
                KeyedJaggedTensor(["a"], torch.tensor([1, 39, 2], dtype=torch.int32), lengths=[2, 1]),
            )
        ]
        sent = requests[0].sparse[0].values
        assert {request.sparse[0].values for request in requests} == {sent}
        assert np.frombuffer(sent, "<i8").tolist() == [1, 39, 2]
        tables = (TableUse(name="t", num_embeddings=40),)
        signature = Signature(
            dense=(),
            sparse=(SparseInput(name="a", tables=tables, pooling="sum"),),
            outputs=(Output(name="score", shape=()),),
        )
        checker = RequestChecker(signature, BatchLimits())
        checker.check(requests[0])
        requests[0].sparse[0].values = np.array([1, 39, 2], "<i4").tobytes()
        with pytest.raises(ValueError, match="values"):
            checker.check(requests[0])

    def test_14_from_jt_dict_reads_nothing_back(self) -> None:
        parts = {
            key: JaggedTensor([i for ids in bags for i in ids], lengths=[len(ids) for ids in bags])
            for key, bags in BAGS.items()
        }
        with CountReads() as reads:
            batch = KeyedJaggedTensor.from_jt_dict(parts)
            batch.to_dict(), batch.permute([2, 1, 0]), batch.length_per_key()
        assert reads.found == []
        assert batch.to("meta").length_per_key() == [3, 5, 3]

    def test_15_quantizing_leaves_the_model_as_it_was(self, tmp_path: Path) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.ebc = trained()

            def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
                pooled: KeyedTensor = self.ebc(features)
                return pooled

        model = Model()
        before = {name: w.clone() for name, w in model.state_dict().items()}
        QuantEmbeddingBagCollection.from_float(model.ebc)
        export_model(model, tmp_path / "model", ExportConfig())
        assert type(model.ebc) is EmbeddingBagCollection
        assert set(model.state_dict()) == set(before)
        assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


def trained_answer() -> KeyedTensor:
    answer: KeyedTensor = trained()(kjt_of(BAGS))
    return answer


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
class TestTheirs:
    @pytest.fixture
    def peer(self) -> Any:
        # Imported here, so that TestOurs runs where TorchRec is missing.
        import tests.peer.torchrec_peer as peer

        return peer

    def holder(self, peer: Any, **changes: Any) -> Any:
        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.ebc = collection(peer, **changes)

            def forward(self, features: Any) -> Any:
                return self.ebc(features)

        return Holder()

    def quantized(self, peer: Any) -> Any:
        return peer.quantize_inference_model(self.holder(peer))

    def test_1_sharding_wants_cuda(self, peer: Any) -> None:
        if torch.cuda.is_available():
            pytest.skip("only machines without CUDA show it")
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            peer.shard_quant_model(
                self.quantized(peer), world_size=2, compute_device="cpu", sharding_device="cpu"
            )

    def test_2_a_bare_collection_comes_back_unquantized(self, peer: Any) -> None:
        bare = collection(peer)
        assert peer.quantize_inference_model(bare) is bare
        assert type(bare) is peer.torchrec.EmbeddingBagCollection

    def test_6_the_order_of_the_first_request_is_taken_for_all(self, peer: Any) -> None:
        module = self.quantized(peer)
        expected = {key: tensor.clone() for key, tensor in module(self.batch(peer, "abc")).to_dict().items()}
        later = module(self.batch(peer, "cba")).to_dict()
        assert not torch.allclose(later["a"].float(), expected["a"].float(), atol=0.05)

    def test_7_keys_change_their_order(self, peer: Any) -> None:
        module = self.holder(peer)
        assert module(self.batch(peer, "abc")).keys() == ["a", "b", "c"]
        assert peer.quantize_inference_model(module)(self.batch(peer, "abc")).keys() == ["a", "c", "b"]

    def test_9_an_id_beyond_the_table_is_taken(self, peer: Any) -> None:
        bags = BAGS | {"c": [[1], [20]]}
        assert self.quantized(peer)(self.batch(peer, "abc", bags)).values().shape == (2, 192)

    def test_10_a_missing_key_is_a_bare_index_error(self, peer: Any) -> None:
        module = self.quantized(peer)
        module(self.batch(peer, "abc"))
        with pytest.raises(IndexError, match="list index out of range"):
            module(self.batch(peer, "ab"))

    def test_11_lengths_that_miss_the_values_are_not_noticed(self, peer: Any) -> None:
        made = peer.torchrec.KeyedJaggedTensor(["a"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1]))
        assert made.lengths().tolist() == [1]

    @pytest.mark.parametrize(("dim", "kind"), [(63, torch.qint8), (10, torch.quint4x2)], ids=["int8", "int4"])
    def test_12_odd_dims_are_refused(self, peer: Any, dim: int, kind: torch.dtype) -> None:
        with pytest.raises(RuntimeError):
            peer.quantize_inference_model(
                self.holder(peer, dim=dim), per_table_weight_dtype=dict.fromkeys("tuv", kind)
            )

    def test_14_from_jt_dict_reads_lengths_back(self, peer: Any) -> None:
        jt = peer.torchrec.JaggedTensor(torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
        with CountReads() as reads:
            peer.torchrec.KeyedJaggedTensor.from_jt_dict({"a": jt, "b": jt}).to_dict()
        assert reads.found != []

    def test_15_quantizing_changes_the_model_it_was_given(self, peer: Any) -> None:
        module = self.holder(peer)
        assert peer.quantize_inference_model(module) is module
        assert type(module.ebc) is not peer.torchrec.EmbeddingBagCollection

    def batch(self, peer: Any, keys: str, bags: dict[str, list[list[int]]] = BAGS) -> Any:
        ours = kjt_of({key: bags[key] for key in keys})
        return peer.torchrec.KeyedJaggedTensor(ours.keys(), ours.values(), lengths=ours.lengths())


def collection(peer: Any, dim: int = 64) -> Any:
    """TorchRec's, of the same tables."""
    return peer.torchrec.EmbeddingBagCollection(
        [
            peer.configs.EmbeddingBagConfig(
                name=t.name,
                num_embeddings=t.num_embeddings,
                embedding_dim=dim,
                feature_names=t.feature_names,
                pooling=peer.configs.PoolingType(t.pooling.value),
            )
            for t in TABLES
        ]
    )
