"""Nothing reads a tensor behind the caller's back: counted on the host, impossible on meta, forbidden on CUDA."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from recsys import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingCollection,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
)
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.scripting.torchscript import operators, script
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.helpers import CollectionTracer, bag, needs_gpu, sequence, traced
from tests.support.reads import CountReads

TABLES = [bag("t", 40, 32, ["a"]), bag("u", 30, 8, ["b", "c"], "MEAN"), bag("v", 20, 8, ["a"], "MEAN")]
ROWS = [sequence("t", 40, 16, ["a"]), sequence("u", 30, 16, ["b", "c"])]
FLOAT_GRAPH_READS = (
    "item",
    "Int",
    "IntImplicit",
    "Bool",
    "Float",
    "FloatImplicit",
    "ScalarImplicit",
    "tolist",
)


def jagged(seed: int, weighted: bool = False) -> JaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (5,), generator=generator)
    num_ids = int(lengths.sum())
    values = torch.randint(0, 20, (num_ids,), generator=generator)
    return JaggedTensor(values, weights=torch.rand(num_ids) if weighted else None, lengths=lengths)


def features(weighted: bool = False) -> dict[str, JaggedTensor]:
    return {name: jagged(i, weighted) for i, name in enumerate("cab")}


def every_way(batch: KeyedJaggedTensor) -> None:
    """All that a batch can be asked for without reading it."""
    batch.lengths(), batch.offsets(), batch.stride(), batch.length_per_key(), batch.offset_per_key()
    for jt in [batch["a"], *batch.to_dict().values()]:
        jt.lengths(), jt.offsets(), jt.weights_or_none()
    left, right = batch.split([1, 2])
    KeyedJaggedTensor.concat([right, left]).permute([2, 0, 1]).to_dict()
    repr(batch), batch.keys(), batch.index_per_key()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
class TestDataTypes:
    def test_nothing_is_read_from_jt_dict_on(self, weighted: bool) -> None:
        parts = features(weighted)
        with CountReads() as reads:
            every_way(KeyedJaggedTensor.from_jt_dict(parts))
        assert reads.found == []

    def test_the_lengths_per_key_go_along_to_a_device_that_cannot_be_read(self, weighted: bool) -> None:
        parts = features(weighted)
        batch = KeyedJaggedTensor.from_jt_dict(parts).to("meta", non_blocking=True)
        assert batch.device().type == "meta"
        assert batch.length_per_key() == [jt.values().numel() for jt in parts.values()]
        every_way(batch)
        assert [jt.values().shape for jt in batch.to_dict().values()] == [
            jt.values().shape for jt in parts.values()
        ]


def test_keyed_tensor_reads_nothing() -> None:
    with CountReads() as reads:
        keyed = KeyedTensor(["a", "b"], [2, 3], torch.rand(4, 5))
        keyed["b"], keyed.to_dict(), KeyedTensor.regroup([keyed], [["b", "a"]]), repr(keyed)
    assert reads.found == []


def test_lengths_per_key_are_not_fetched_from_a_device_in_secret() -> None:
    with FakeTensorMode():  # tensors of a device that this machine may lack
        ones = torch.empty(2, dtype=torch.int64, device="cuda")
        batch = KeyedJaggedTensor(["a", "b"], ones, lengths=ones)
        with pytest.raises(ValueError, match=r"length_per_key.*not known for tensors on cuda.*sync"):
            batch.to_dict()


def collections() -> list[tuple[str, nn.Module]]:
    pooled, rows = EmbeddingBagCollection(TABLES), EmbeddingCollection(ROWS)
    env = ShardingEnv.over_devices(["cpu", "cpu"])
    quantized = QuantEmbeddingBagCollection.from_float(pooled, table_data_types={"u": DataType.INT4})
    quantized_rows = QuantEmbeddingCollection.from_float(rows)
    plan = {
        "t": column_wise(TABLES[0], [1, 0]),
        "u": row_wise(TABLES[1], [0, 1]),
        "v": table_wise(TABLES[2], 1),
    }
    rows_plan = {"t": row_wise(ROWS[0], [1, 0]), "u": column_wise(ROWS[1], [0, 1])}
    return [
        ("float", pooled),
        ("float rows", rows),
        ("quantized", quantized),
        ("quantized rows", quantized_rows),
        ("sharded", quantized.shard(plan, env)),
        ("sharded rows", quantized_rows.shard(rows_plan, env)),
    ]


COLLECTIONS = collections()


@pytest.mark.parametrize("collection", [c for _, c in COLLECTIONS], ids=[name for name, _ in COLLECTIONS])
class TestForward:
    def test_reads_nothing(self, collection: nn.Module) -> None:
        batch = KeyedJaggedTensor.from_jt_dict(features())
        collection(batch)  # what is made once, is made
        with CountReads() as reads:
            collection(KeyedJaggedTensor.from_jt_dict(features_without_reading()))
        assert reads.found == []

    def test_its_graph_reads_nothing(self, collection: nn.Module) -> None:
        graph = traced(collection, ["c", "a", "b"])
        named = {name.split("::")[-1] for name in operators(script(graph))}
        assert named.isdisjoint(FLOAT_GRAPH_READS)


PARTS = features()


def features_without_reading() -> dict[str, JaggedTensor]:
    return {name: JaggedTensor(jt.values(), lengths=jt.lengths()) for name, jt in PARTS.items()}


def test_float_collections_run_on_a_device_that_cannot_be_read() -> None:
    batch = KeyedJaggedTensor.from_jt_dict(features()).to("meta")
    pooled = EmbeddingBagCollection(TABLES, device="meta")(batch)
    assert pooled.values().shape == (5, 32 + 8 + 8 + 8)
    rows = EmbeddingCollection(ROWS, device="meta")(batch)
    assert {name: jt.values().shape[0] for name, jt in rows.items()} == {
        name: jt.values().numel() for name, jt in features().items()
    }


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "numpy": lambda t: t.numpy(),
    "bool": lambda t: bool(t[0] > 0),
    "int": lambda t: int(t[0]),
    "float": lambda t: float(t[0]),
    "index": lambda t: [1, 2, 3][t[0]],
    "to('cpu')": lambda t: t.to("cpu"),
    "to(device)": lambda t: t.to(device=torch.device("cpu")),
    "equal": lambda t: torch.equal(t, t),
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 0],
    "repeat_interleave": lambda t: torch.repeat_interleave(t, t),
    "contains": lambda t: 1 in t,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_counter_sees_a_deliberate_read(read: Callable[[Tensor], object]) -> None:
    tensor = torch.tensor([1, 2])
    with CountReads() as reads:
        read(tensor)
    assert reads.found != []


def test_a_read_slipped_into_the_library_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = KeyedJaggedTensor.lengths

    def reading(self: KeyedJaggedTensor) -> Tensor:
        found = lengths(self)
        assert found.sum().item() >= 0
        return found

    monkeypatch.setattr(KeyedJaggedTensor, "lengths", reading)
    parts = features()
    with CountReads() as reads:
        every_way(KeyedJaggedTensor.from_jt_dict(parts))
    assert "item" in reads.found


class FromDict(nn.Module):
    """Builds its batch from the tensors of single features, and takes it apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.collection = EmbeddingBagCollection([bag("t", 40, 8, ["a"]), bag("u", 30, 8, ["b"], "MEAN")])

    # No annotations: as texts, FX would hand them on to TorchScript, which cannot read them.
    def forward(self, ids_a, lengths_a, ids_b, lengths_b):  # type: ignore[no-untyped-def]
        batch = KeyedJaggedTensor.from_jt_dict(
            {"a": JaggedTensor(ids_a, lengths=lengths_a), "b": JaggedTensor(ids_b, lengths=lengths_b)}
        )
        assert batch.length_per_key_or_none() is not None
        first, second = batch.split([1, 1])
        turned = KeyedJaggedTensor.concat([second, first]).permute([1, 0])
        return self.collection(turned).values(), turned["b"].values(), batch.lengths()


def test_a_traced_batch_carries_its_lengths_per_key() -> None:
    model = FromDict()
    tracer = CollectionTracer()
    graph = fx.GraphModule(tracer.root if hasattr(tracer, "root") else model, tracer.trace(model))
    methods = {node.target for node in graph.graph.nodes if node.op == "call_method"}
    assert methods.isdisjoint({"item", "tolist", "cpu", "numpy", "__bool__", "__int__"})
    scripted = script(graph)
    assert {name.split("::")[-1] for name in operators(scripted)}.isdisjoint(FLOAT_GRAPH_READS)
    a, b = jagged(1), jagged(2)
    expected = model(a.values(), a.lengths(), b.values(), b.lengths())
    for got in (graph, scripted):
        for answer, right in zip(
            got(a.values(), a.lengths(), b.values(), b.lengths()), expected, strict=True
        ):
            assert torch.equal(answer, right)


@contextmanager
def synchronization_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class TestGpu:
    pytestmark = needs_gpu

    def test_the_mode_sees_a_read(self) -> None:
        tensor = torch.ones(1, device="cuda")
        with synchronization_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
            tensor.item()

    def test_data_types_and_float_collections_never_wait(self) -> None:
        collection = EmbeddingBagCollection(TABLES, device="cuda")
        batch = KeyedJaggedTensor.from_jt_dict(features()).pin_memory()
        collection(batch.to("cuda"))
        with synchronization_is_an_error():
            on_gpu = batch.to("cuda", non_blocking=True)
            every_way(on_gpu)
            collection(on_gpu)

    @pytest.mark.parametrize("row_cuts", [False, True], ids=["whole", "cut"])
    def test_sharded_collections_never_wait(self, row_cuts: bool) -> None:
        rng = random.Random(0)
        quantized = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection(TABLES))
        plan = {t.name: row_wise(t, [0, 1]) if row_cuts else table_wise(t, rng.randrange(2)) for t in TABLES}
        sharded = quantized.shard(plan, ShardingEnv.over_devices(["cuda:0", "cuda:0"]))
        batch = KeyedJaggedTensor.from_jt_dict(features())
        sharded(batch)
        with synchronization_is_an_error():
            sharded(batch)
