"""Models of raw IDs: the artifact takes them, and maps them as the float model does.

Shape letters: B batch, D embedding dim, Z rows of a managed table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.graph.graph import ExportedModel, finished, traced_model
from export.graph.modules import replace_modules
from export.graph.prepared import shard_without_rows
from export.pipeline import export_model
from export.prepare import prepare
from export.verify.compare import CUDA_ROWS_TOLERANCE
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError, VerificationError
from recsys.inputs.signature import IdPolicy
from recsys.managed import (
    HashZchManagedCollisionModule,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    MCHManagedCollisionModule,
)
from recsys.managed.frozen import FrozenLookup, filled_slots
from recsys.managed.slots import SLOTS
from recsys.scripting.torchscript import load, operators
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise
from tests.recsys.managed.other import OtherModule
from tests.support.helpers import bag, kjt_of, needs_gpu, sequence
from tests.support.models.export_models import assert_close, exported, predicted, rounded

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
KNOWN = [INT64_MIN, -(2**40), -1, 0, 5, 2**33 + 1, INT64_MAX]
UNKNOWN = [INT64_MIN + 1, -2, 1, 6, 8, 2**33, INT64_MAX - 1]


def mapping_of(configs: Any, *names: str) -> ManagedCollisionCollection:
    """Modules that have learned KNOWN, for some tables."""
    by_name = {config.name: config for config in configs}
    modules = {}
    for name in names:
        modules[name] = MCHManagedCollisionModule(by_name[name].num_embeddings, None, LRU_EvictionPolicy(), 1)
        modules[name].train()(torch.tensor(KNOWN))
    return ManagedCollisionCollection(modules, configs).eval()


class Pooled(nn.Module):
    """Two managed tables, one of two features, around one that takes rows; and a dense layer."""

    def __init__(self, pooling: str = "MEAN") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = [
            bag("users", 9, 16, ["user", "friend"], pooling),
            bag("days", 7, 16, ["day"]),
            bag("wares", 20, 16, ["ware"], pooling),
        ]
        ebc = EmbeddingBagCollection(self.tables)
        mapping = mapping_of(self.tables, "users", "wares")
        self.bags = ManagedCollisionEmbeddingBagCollection(ebc, mapping, embeddings_only=True)
        self.layer = nn.Linear(2, 16)

    def forward(self, price: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Sums, and one feature's embedding."""
        pooled = self.bags(features)
        total = torch.relu(self.layer(price)) + pooled["user"] + pooled["friend"] * pooled["day"]
        return {"score": (total + pooled["ware"]).sum(dim=1), "user": pooled["user"]}


class Sequences(nn.Module):
    """One row for each raw ID; returns TorchRec's pair, and reads the mapped batch itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        tables = [sequence("users", 9, 8, ["user"]), sequence("days", 7, 8, ["day"])]
        self.rows = ManagedCollisionEmbeddingCollection(
            EmbeddingCollection(tables), mapping_of(tables, "users"), return_remapped_features=True
        )

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """The first row and its number."""
        found, remapped = self.rows(features)
        number = remapped["user"].to_padded_dense(1).to(torch.float32)
        return {
            "row": found["user"].to_padded_dense(1),
            "day": found["day"].to_padded_dense(2),
            "number": number,
        }


def call_of(**ids: list[list[int]]) -> KeyedJaggedTensor:
    return kjt_of(ids)


def flat(features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
    return features.lengths(), features.values()


RAW = [[i] for i in KNOWN + UNKNOWN] + [[], KNOWN, UNKNOWN, [5, 6, 5, INT64_MIN]]
PLANS: dict[str, Callable[[], ShardingPlan | None]] = {
    "placed": lambda: None,
    "rows": lambda: ShardingPlan(
        plan={
            "bags._embedding_module": {
                t.name: row_wise(t, [1, 0]) if t.name != "days" else column_wise(t, [0, 1])
                for t in Pooled().tables
            }
        }
    ),
}


class TestPredictions:
    @pytest.mark.parametrize("plan", list(PLANS))
    @pytest.mark.parametrize(
        "target",
        [
            pytest.param(("cpu",), id="one device"),
            pytest.param(("cpu", "cpu"), id="two devices"),
            pytest.param(("cuda:0",), id="cuda", marks=needs_gpu),
        ],
    )
    @pytest.mark.parametrize("data_type", [DataType.FP32, DataType.INT8])
    def test_raw_ids_read_the_rows_of_the_float_model(
        self, tmp_path: Path, plan: str, target: tuple[str, ...], data_type: DataType
    ) -> None:
        if plan == "rows" and len(target) == 1:
            pytest.skip("one device has no plan of two")
        model = Pooled().eval()
        report, artifact = exported(
            model, tmp_path / "a", targets=(target,), plan=PLANS[plan](), data_type=data_type
        )
        num_rows = len(RAW)
        batch = call_of(
            user=RAW, friend=RAW[::-1], day=[[i % 7] for i in range(num_rows)], ware=RAW[5:] + RAW[:5]
        )
        price = torch.randn(num_rows, 2, generator=torch.Generator().manual_seed(0))
        found = artifact.forward(price, *flat(batch))
        expected = predicted(rounded(model, data_type), {"price": price, "features": batch})
        assert_close(found, expected, CUDA_ROWS_TOLERANCE if target == ("cuda:0",) else 2.0**-16)
        assert report.num_samples == 256

    def test_known_ids_have_rows_of_their_own_and_unknown_ones_share_the_last(self, tmp_path: Path) -> None:
        model = Pooled("SUM").eval()
        _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
        ids = KNOWN + UNKNOWN
        empty: list[list[int]] = [[]] * len(ids)
        batch = call_of(user=[[i] for i in ids], friend=empty, day=empty, ware=empty)
        rows = artifact.forward(torch.zeros(len(ids), 2), *flat(batch))["user"]
        weight = model.bags.embedding_module.embedding_bags["users"].weight.detach()
        assert torch.equal(rows[len(KNOWN) :], weight[8].expand(len(UNKNOWN), -1))
        assert torch.equal(rows[: len(KNOWN)], weight[: len(KNOWN)])

    def test_sequences_and_the_mapped_batch(self, tmp_path: Path) -> None:
        model = Sequences().eval()
        _, artifact = exported(model, tmp_path / "a", targets=(("cpu", "cpu"),), data_type=DataType.FP32)
        batch = call_of(user=RAW, day=[[i % 7] for i in range(len(RAW))])
        assert_close(artifact.forward(*flat(batch)), predicted(model, {"features": batch}))

    def test_the_collection_is_the_model(self, tmp_path: Path) -> None:
        model = Pooled().bags.eval()
        _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32, targets=(("cpu", "cpu"),))
        batch = call_of(user=RAW, friend=RAW, day=[[3]] * len(RAW), ware=RAW)
        assert_close(artifact.forward(*flat(batch)), predicted(model, {"features": batch}))

    def test_a_table_that_has_learned_nothing(self, tmp_path: Path) -> None:
        table = bag("t", 5, 8, ["f"])
        mapping = ManagedCollisionCollection(
            {"t": MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1)}, [table]
        )
        model = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection([table]), mapping, embeddings_only=True
        ).eval()
        _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
        found = artifact.forward(*flat(call_of(f=[[i] for i in KNOWN])))["f"]
        weight = model.embedding_module.embedding_bags["t"].weight.detach()
        assert torch.equal(found, weight[4].expand(len(KNOWN), -1))

    def test_rows_by_hash(self, tmp_path: Path) -> None:
        tables = [bag("t", 24, 8, ["f"]), bag("u", 12, 8, ["g"]), bag("rows", 5, 8, ["h"])]
        modules = {
            "t": HashZchManagedCollisionModule(24, None, 2),
            "u": MCHManagedCollisionModule(12, None, LRU_EvictionPolicy(), 1),
        }
        for module in modules.values():
            module.train()(torch.tensor(KNOWN))
        model = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables), ManagedCollisionCollection(modules, tables), embeddings_only=True
        ).eval()
        _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32, graph_format="both")
        batch = call_of(f=RAW, g=RAW, h=[[1]] * len(RAW))
        found = artifact.forward(*flat(batch))
        assert_close(found, predicted(model, {"features": batch}))
        assert torch.unique(found["f"][len(KNOWN) : len(KNOWN + UNKNOWN)], dim=0).shape[0] > 1

    def test_bfloat16_layers(self, tmp_path: Path) -> None:
        report, _ = exported(Pooled().eval(), tmp_path / "a", dense_dtype="bfloat16")
        assert report.differences["cpu"]["score"].max_abs < 0.1

    def test_a_single_file(self, tmp_path: Path) -> None:
        model = Pooled().eval()
        export_model(model, tmp_path / "a.pt", ExportConfig(single_file=True, data_type=DataType.FP32))
        batch = call_of(user=RAW, friend=RAW, day=[[3]] * len(RAW), ware=RAW)
        price = torch.zeros(len(RAW), 2)
        found = load_artifact(tmp_path / "a.pt").forward(price, *flat(batch))
        assert_close(found, predicted(model, {"price": price, "features": batch}))

    def test_a_training_model_stays_as_it_is(self, tmp_path: Path) -> None:
        model = Pooled().train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        exported(model, tmp_path / "a")
        assert model.bags.managed_collision_collection.training
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    return exported(Pooled().eval(), tmp_path_factory.mktemp("managed") / "a")[1]


class TestTheArtifact:
    def test_the_signature_says_that_ids_are_raw(self, artifact: LoadedArtifact) -> None:
        features = {s.name: s for s in artifact.signature.sparse}
        assert {name: s.tables[0].id_policy for name, s in features.items()} == {
            "user": IdPolicy.MAPPED,
            "friend": IdPolicy.MAPPED,
            "day": IdPolicy.REJECT,
            "ware": IdPolicy.MAPPED,
        }
        assert {name: (s.id_limit, s.row_limit) for name, s in features.items()} == {
            "user": (None, None),
            "friend": (None, None),
            "day": (7, 7),
            "ware": (None, None),
        }

    def test_rows_of_the_other_table_are_checked(self, artifact: LoadedArtifact) -> None:
        batch = call_of(user=[[9]], friend=[[9]], day=[[7]], ware=[[9]])
        with pytest.raises(RuntimeError):
            artifact.forward(torch.zeros(1, 2), *flat(batch))

    @pytest.mark.parametrize(
        "lengths",
        [[1, 1, 1, 2], [1, 1, 1, 0], [2, -1, 1, 2], [-1, 2, 1, 2], [1, 1, 2**62, 2**62], [1, 1, 2]],
        ids=["too many", "too few", "negative", "negative first", "overflow", "no whole rows"],
    )
    def test_lengths_that_lie_raise(self, artifact: LoadedArtifact, lengths: list[int]) -> None:
        with pytest.raises(RuntimeError):
            artifact.forward(torch.zeros(1, 2), torch.tensor(lengths), torch.zeros(4, dtype=torch.int64))

    def test_the_callers_ids_stay(self, artifact: LoadedArtifact) -> None:
        batch = call_of(user=[[2**40]], friend=[[-1]], day=[[6]], ware=[[INT64_MIN]])
        before = batch.values().clone()
        artifact.forward(torch.zeros(1, 2), *flat(batch))
        assert torch.equal(batch.values(), before)

    def test_samples_are_known_and_unknown_ids(self) -> None:
        job = prepare(Pooled().eval(), ExportConfig(), lambda *_: None)
        ids = job.samples.lengths.view(4, -1).sum(dim=1).tolist()
        users = torch.split(job.samples.values, ids)[0]
        share = float(torch.isin(users, torch.tensor(KNOWN)).float().mean())
        assert 0.4 < share < 0.6
        assert int(users.max()) > 2**60
        assert int(users.min()) < -(2**60)

    @pytest.mark.parametrize("part", ["fallbacks", "slots"], ids=["unknown IDs", "known IDs"])
    def test_a_mapping_that_went_wrong_is_not_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
    ) -> None:
        class Wrong(FrozenLookup):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.fallbacks[:-1] = 0

        def wrong_slots(modules: Any) -> Tensor:
            slots = filled_slots(modules)
            rows = slots[:, SLOTS:]
            is_used = rows >= 0
            rows[is_used] = rows[is_used].flip(0)
            return slots

        if part == "fallbacks":
            monkeypatch.setattr("export.graph.managed.FrozenLookup", Wrong)
        else:
            monkeypatch.setattr("export.graph.managed.filled_slots", wrong_slots)
        with pytest.raises(VerificationError, match="what the model makes of the stored rows"):
            export_model(Pooled().eval(), tmp_path / "a")
        assert not (tmp_path / "a").exists()

    def test_samples_in_json(self, tmp_path: Path) -> None:
        (tmp_path / "samples").write_text(
            f'{{"dense": {{"price": [[1, 2]]}}, "sparse": {{"user": [[{INT64_MIN}, 7]], "friend": [[{INT64_MAX}]], '
            '"day": [[6]], "ware": [[-1]]}}'
        )
        report, _ = exported(
            Pooled().eval(), tmp_path / "a", samples=tmp_path / "samples", data_type=DataType.FP32
        )
        assert report.num_samples == 1
        assert report.differences["cpu"]["score"].max_abs < 1e-5


class TestDevices:
    def test_the_mapping_stays_in_host_memory(self) -> None:
        devices = ("cuda:0", "cuda:1")
        job = prepare(Pooled().eval(), ExportConfig(targets=(devices,)), lambda *_: None)
        skeletons = shard_without_rows(job.collections, job.stored, "cuda:0,cuda:1", torch.float32)
        model = replace_modules(job.model, {**skeletons, **job.managed.frozen(with_ids=True)})
        ranks = [torch.device(d) for d in devices]
        graph = finished(traced_model(model, job.input_mapping, ranks, torch.float32), is_scripted=True)
        state = {name for name, _ in graph.script.named_buffers()}
        mapping = {name for name in state if "_managed_collision_collection.lookup." in name}
        names = {name.rsplit(".", 1)[1] for name in mapping}
        assert {"masks", "first_slots", "fallbacks", "slots"} < names
        assert not mapping & set(graph.ranks)
        assert not mapping & set(graph.rows)

    def test_a_target_that_this_machine_lacks(self, tmp_path: Path) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has the device")
        report, _ = exported(Pooled().eval(), tmp_path / "a", targets=(("cpu",), ("cuda:0",)))
        assert report.verified_on["cuda:0"].startswith("cpu, the same plan")

    def test_operators_of_the_graph(self, tmp_path: Path) -> None:
        exported(Pooled().eval(), tmp_path / "a")
        found = operators(load(tmp_path / "a" / "target-0.pt"))
        assert {"aten::index_select", "aten::eq", "aten::where"} <= set(found)

    def test_the_batch_is_sent_as_it_was_mapped(self) -> None:
        # The way of other devices, in host memory, where sending copies nothing.
        model = Sequences().eval()
        job = prepare(model, ExportConfig(data_type=DataType.FP32), lambda *_: None)
        skeletons = shard_without_rows(job.collections, job.stored, "cpu", torch.float32)
        module = replace_modules(job.model, {**skeletons, **job.managed.frozen(with_ids=True)})
        home = [torch.device("cpu")]
        root = ExportedModel(module, job.input_mapping, home, torch.float32)
        batch = call_of(user=[[INT64_MIN], [1]], day=[[3], []])
        sent, _ = root._sent({"features": batch}, [])
        inputs = sent["features"].inputs[skeletons["rows._embedding_module"]]  # type: ignore[attr-defined]
        assert inputs.groups[0].values.tolist() == [0, 8, 3]
        found = module.rows.managed_collision_collection(sent["features"])
        assert found.inputs == sent["features"].inputs  # type: ignore[attr-defined]
        assert found.values().tolist() == [0, 8, 3]


class Alone(nn.Module):
    """A mapping outside of a managed collection."""

    def __init__(self) -> None:
        super().__init__()
        tables = [bag("t", 9, 8, ["f"])]
        self.mapping = mapping_of(tables, "t")
        self.ebc = EmbeddingBagCollection(tables)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Mapped by hand."""
        pooled: Tensor = self.ebc(self.mapping(features)).values()
        return pooled


def _of_other_kind() -> nn.Module:
    table = bag("t", 5, 8, ["f"])
    mapping = ManagedCollisionCollection({"t": OtherModule()}, [table])
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection([table]), mapping, embeddings_only=True
    )


def _sharded_already() -> nn.Module:
    model = Pooled()
    model.bags._embedding_module = nn.Identity()
    model.more = EmbeddingBagCollection([bag("t", 5, 8, ["f"])])
    return model


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            pytest.param(Alone, r"'mapping': got a ManagedCollisionCollection alone", id="alone"),
            pytest.param(_of_other_kind, "table 't': got a OtherModule", id="other kind"),
            pytest.param(_sharded_already, "got a Identity within, expected an unsharded", id="sharded"),
        ],
    )
    def test_models(self, tmp_path: Path, make: Callable[[], nn.Module], text: str) -> None:
        with pytest.raises(ExportError, match=text):
            export_model(make().eval(), tmp_path / "a")
        assert not (tmp_path / "a").exists()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            pytest.param({"id_policy": IdPolicy.MAPPED}, "id_policy: got 'mapped'", id="asked for all"),
            pytest.param(
                {"table_id_policies": {"days": IdPolicy.MAPPED}}, "got 'mapped'", id="asked for one"
            ),
            pytest.param(
                {"table_id_policies": {"users": IdPolicy.HASH}},
                "got 'hash' for table 'bags._embedding_module.users', expected none",
                id="another policy",
            ),
        ],
    )
    def test_options(self, tmp_path: Path, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ExportError, match=text):
            export_model(Pooled().eval(), tmp_path / "a", ExportConfig(**options))

    def test_a_policy_for_all_tables_is_for_those_of_rows(self, tmp_path: Path) -> None:
        _, found = exported(Pooled().eval(), tmp_path / "a", id_policy=IdPolicy.ZERO)
        policies = {s.name: s.tables[0].id_policy for s in found.signature.sparse}
        assert policies["day"] is IdPolicy.ZERO
        assert policies["user"] is IdPolicy.MAPPED
