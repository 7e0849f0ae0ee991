"""The ranking form: contexts are looked up once, and it answers as the plain form does for the expanded batch.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.graph.graph import ExportedModel, Ids, finished, traced_model
from export.graph.modules import replace_modules
from export.graph.prepared import PreparedModel, empty_ranks, ranking_of, sharded_of
from export.graph.ranking import jagged_places
from export.prepare import prepare
from recsys.artifact.batches.ranking import expand
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.parts import map_rows
from recsys.configs import DataType
from recsys.inputs.signature import IdPolicy
from recsys.kernels.int_nbit import IntNBitLookup
from recsys.quant import float_tables
from recsys.sharding.plan.device_rows import DeviceRows
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.export.graph.test_managed import PLANS as MANAGED_PLANS
from tests.export.graph.test_managed import Pooled
from tests.export.graph.test_managed import Sequences as ManagedSequences
from tests.support.helpers import needs_gpu
from tests.support.models.export_models import (
    CASES,
    Several,
    Twice,
    arguments,
    assert_close,
    bare,
    dlrm,
    predicted,
    rounded,
)
from tests.support.models.export_ranking import BATCHES, assert_equal_forms, batch_of, ranked

# For each case several sets of inputs that are the context's: some features, all, dense ones only.
CONTEXTS: dict[str, list[tuple[str, ...]]] = {
    "dlrm": [("f0", "f2"), ("dense_features", "f3"), ("f0", "f1", "f2", "f3"), ("dense_features",)],
    "bare collection": [("item",), ("user", "flag"), ("user", "item", "last_item", "flag")],
    "bare weighted collection": [("user", "last_item"), ("item",)],
    "sequences": [("clicked", "user"), ("shop",), ("clicked", "bought", "shop")],
    "weighted and unweighted": [("user", "tag", "age"), ("tag", "topic"), ("price", "ad")],
    "two arguments with one name": [("user.id", "country", "user.kind"), ("item.kind",)],
    "several collections": [("common",), ("f1", "g")],
    "mixed row types": [("item", "user")],
}

_MADE = [
    pytest.param((name, context), id=f"{name}: {', '.join(context)}")
    for name, contexts in CONTEXTS.items()
    for context in contexts
]


@pytest.fixture(scope="module", params=_MADE)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, nn.Module, LoadedArtifact]:
    """A case, its float model and its artifact."""
    name, context = request.param
    model = CASES[name].make()
    path = tmp_path_factory.mktemp("ranking") / "a"
    return name, model, ranked(model, path, context, table_data_types=CASES[name].table_data_types)


class TestPredictions:
    @pytest.mark.parametrize("rows_per_context", BATCHES.values(), ids=BATCHES)
    def test_answers_as_for_the_expanded_batch(
        self, made: tuple[str, nn.Module, LoadedArtifact], rows_per_context: list[int]
    ) -> None:
        assert_equal_forms(made[2], batch_of(made[2], rows_per_context))

    def test_bags_without_ids(self, made: tuple[str, nn.Module, LoadedArtifact]) -> None:
        batch = batch_of(made[2], [3, 2])
        empty = replace(
            batch,
            context_lengths=torch.zeros_like(batch.context_lengths),
            context_values=batch.context_values[:0],
            context_weights=None if batch.context_weights is None else batch.context_weights[:0],
        )
        assert_equal_forms(made[2], empty)

    def test_answers_as_the_float_model_of_rounded_rows(
        self, made: tuple[str, nn.Module, LoadedArtifact]
    ) -> None:
        name, model, artifact = made
        case = CASES[name]
        batch = batch_of(artifact, [5, 0, 9], seed=4)
        call = arguments(artifact.signature, expand(artifact.signature, batch), case.sparse)
        expected = predicted(rounded(model, DataType.INT8, case.table_data_types), call)
        assert_close(artifact.forward_ranking(*batch.inputs()), expected)

    def test_the_graph_takes_plain_tensors(self, made: tuple[str, nn.Module, LoadedArtifact]) -> None:
        signature, graph = made[2].signature, made[2].ranking
        assert graph is not None
        schema = graph.forward.schema  # type: ignore[attr-defined]
        assert {str(a.type) for a in schema.arguments[1:]} == {"Tensor"}
        ids = ["lengths", "values", *(["weights"] if signature.is_weighted else [])]
        assert [a.name for a in schema.arguments[1 + len(signature.dense) :]] == [
            *(f"context_{name}" for name in ids),
            *ids,
            "row_context",
        ]


PLANS: dict[str, Callable[[Any], Any]] = {
    "by rows": lambda t: row_wise(t, [1, 0]),
    "by columns": lambda t: column_wise(t, [0, 1]) if t.embedding_dim % 16 == 0 else table_wise(t, 1),
    "on another device": lambda t: table_wise(t, 1),
}


class TestPooledEmbeddings:
    """Outputs that are the pooled values themselves, under every plan, type and policy."""

    # Every pair of a plan, a type and whether there are weights.
    @pytest.mark.parametrize(
        ("cut", "dense_dtype", "weighted"),
        [
            ("by rows", "float32", False),
            ("by rows", "bfloat16", True),
            ("by columns", "float32", True),
            ("by columns", "bfloat16", False),
            ("on another device", "float32", False),
            ("on another device", "bfloat16", True),
        ],
    )
    def test_of_every_plan(self, tmp_path: Path, cut: str, dense_dtype: str, weighted: bool) -> None:
        model = bare(weighted=weighted)
        plan = ShardingPlan(plan={"": {t.name: PLANS[cut](t) for t in float_tables(model)}})
        context = ("user", "last_item")
        artifact = ranked(
            model, tmp_path / "a", context, targets=(("cpu", "cpu"),), plan=plan, dense_dtype=dense_dtype
        )
        for rows_per_context in BATCHES.values():
            assert_equal_forms(artifact, batch_of(artifact, rows_per_context, seed=1))

    @pytest.mark.parametrize("data_type", ["fp32", "fp16", "int4", "int2"])
    def test_of_every_row_type(self, tmp_path: Path, data_type: str) -> None:
        artifact = ranked(bare(), tmp_path / "a", ("item",), data_type=DataType(data_type.upper()))
        assert_equal_forms(artifact, batch_of(artifact, [9, 4]))

    @pytest.mark.parametrize("policy", [IdPolicy.HASH, IdPolicy.ZERO, IdPolicy.FMIX64])
    def test_ids_out_of_range(self, tmp_path: Path, policy: IdPolicy) -> None:
        artifact = ranked(bare(), tmp_path / "a", ("item", "user"), id_policy=policy)
        batch = batch_of(artifact, [9, 4])
        far = replace(batch, context_values=batch.context_values * -1000 + 7, values=batch.values + 29)
        assert_equal_forms(artifact, far)

    def test_ids_out_of_range_are_refused(self, tmp_path: Path) -> None:
        artifact = ranked(bare(), tmp_path / "a", ("item", "user"))
        batch = batch_of(artifact, [9, 4])
        for name in ("context_values", "values"):
            for bad in (-1, 10**6, 2**63 - 1):
                wrong = getattr(batch, name).clone()
                wrong[0] = bad
                with pytest.raises(RuntimeError):
                    artifact.forward_ranking(*replace(batch, **{name: wrong}).inputs())

    @pytest.mark.parametrize("context", [("mine.f", "mine.g"), ("mine.f",), ("mine.g", "theirs.g")])
    def test_a_collection_that_is_called_twice(self, tmp_path: Path, context: tuple[str, ...]) -> None:
        artifact = ranked(Twice(), tmp_path / "a", context)
        for rows_per_context in BATCHES.values():
            assert_equal_forms(artifact, batch_of(artifact, rows_per_context))


class TestManaged:
    @pytest.mark.parametrize(
        ("plan", "context"),
        [
            ("placed", ("user", "day")),
            ("rows", ("friend", "price")),
            ("placed", ("user", "friend", "day", "ware")),
            ("rows", ("user", "friend", "day", "ware")),
        ],
    )
    def test_raw_ids(self, tmp_path: Path, plan: str, context: tuple[str, ...]) -> None:
        targets = ("cpu",) if plan == "placed" else ("cpu", "cpu")
        artifact = ranked(
            Pooled().eval(), tmp_path / "a", context, plan=MANAGED_PLANS[plan](), targets=(targets,)
        )
        for rows_per_context in BATCHES.values():
            assert_equal_forms(artifact, batch_of(artifact, rows_per_context))

    def test_mapped_rows_of_the_other_features_may_be_read(self, tmp_path: Path) -> None:
        artifact = ranked(ManagedSequences().eval(), tmp_path / "a", ("day",))
        assert_equal_forms(artifact, batch_of(artifact, [5, 0, 2]))

    def test_mapped_rows_of_the_context_may_be_read(self, tmp_path: Path) -> None:
        artifact = ranked(ManagedSequences().eval(), tmp_path / "a", ("user",))
        assert_equal_forms(artifact, batch_of(artifact, [5, 0, 2]))


def _job(model: nn.Module, context: Sequence[str], devices: Sequence[str] = ("cpu",)) -> PreparedModel:
    config = ExportConfig(context=tuple(context), targets=(tuple(devices),))
    return prepare(model, config, lambda *_: None)


class TestLookups:
    def test_a_context_is_looked_up_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model, context = dlrm(), ("f0", "f2")
        artifact = ranked(model, tmp_path / "a", context)
        job = _job(model, context)
        blob = map_rows(tmp_path / "a" / "rows.bin", job.stored.layout)
        ranks = [DeviceRows(device=torch.device("cpu"), layout=job.stored.layout, rows=blob)]
        wholes = sharded_of(job.collections, job.stored, "cpu", ranks, torch.float32)
        root = ExportedModel(
            replace_modules(model, ranking_of(job, "cpu", ranks, wholes)),
            job.input_mapping,
            [torch.device("cpu")],
            torch.float32,
            job.signature.context,
        )
        looked_up = []
        lookup = IntNBitLookup.forward

        def counting(self: IntNBitLookup, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
            looked_up.append((values.numel(), offsets.numel() - 1))
            return lookup(self, values, offsets, weights)

        monkeypatch.setattr(IntNBitLookup, "forward", counting)
        batch = batch_of(artifact, [50, 50])
        found = root.run_ranking(
            batch.dense,
            Ids(batch.context_lengths, batch.context_values, None),
            Ids(batch.lengths, batch.values, None),
            batch.row_context,
        )
        assert sum(num_ids for num_ids, _ in looked_up) == batch.context_values.numel() + batch.values.numel()
        assert sum(num_bags for _, num_bags in looked_up) == 2 * 2 + 2 * 100
        expected = {name: scores.detach() for name, scores in found.items()}
        assert_close(artifact.forward_ranking(*batch.inputs()), expected)

    def test_of_one_kind_only_a_collection_is_not_taken_apart(self) -> None:
        job = _job(Several(), ("f1", "g"))
        ranks = empty_ranks(job.stored, "cpu")
        wholes = sharded_of(job.collections, job.stored, "cpu", ranks, torch.float32)
        made = ranking_of(job, "cpu", ranks, wholes)
        num_parts = {path: len(collection.context_parts) for path, collection in made.items()}
        assert num_parts == {"towers.0": 0, "towers.1": 1, "towers.2": 0, "rest.inner.ec": 0}

    def test_places(self) -> None:
        lengths, picked = torch.tensor([2, 0, 3]), torch.tensor([2, 0, 1, 2])
        assert jagged_places(lengths, picked).tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
        assert jagged_places(lengths[:0], picked[:0]).tolist() == []
        for bad in (3, -1):
            with pytest.raises(IndexError):
                jagged_places(lengths, torch.tensor([bad]))


class TestDevices:
    @pytest.mark.parametrize(
        ("make", "context"),
        [
            (lambda: dlrm(), ("f0", "dense_features")),
            (CASES["sequences"].make, ("clicked", "user")),
            (CASES["weighted and unweighted"].make, ("user", "tag", "age")),
            (lambda: Pooled().eval(), ("user", "price")),
            (Twice, ("mine.f", "mine.g")),
        ],
        ids=["dlrm", "sequences", "weighted", "managed", "called twice"],
    )
    def test_targets_that_this_machine_lacks(
        self, tmp_path: Path, make: Callable[[], nn.Module], context: tuple[str, ...]
    ) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has the device")
        # The exporter follows devices through the graph of this target, and proves its plan in host memory.
        targets = (("cpu",), ("cuda:0",), ("cuda:0", "cuda:1"))
        artifact = ranked(make(), tmp_path / "a", context, targets=targets)
        for target in artifact.manifest.targets[1:]:
            assert target.ranking is not None
            assert set(target.ranking.rows.values()) <= set(range(len(target.devices)))
            assert target.ranking.ranks
        told = artifact.manifest.verification["ranking_differences"]
        assert list(told) == ["cpu", "cuda:0", "cuda:0,cuda:1"]

    def test_the_way_of_other_devices_in_host_memory(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        # Everything is split and sent at once, where sending copies nothing.
        monkeypatch.setattr(ExportedModel, "_is_elsewhere", True)
        for name in ("sequences", "weighted and unweighted", "dlrm"):
            artifact = ranked(CASES[name].make(), tmp_path / name, CONTEXTS[name][0])
            for rows_per_context in BATCHES.values():
                assert_equal_forms(artifact, batch_of(artifact, rows_per_context))
            wrong = batch_of(artifact, [2])
            with pytest.raises((RuntimeError, IndexError)):
                artifact.forward_ranking(*replace(wrong, row_context=wrong.row_context - 1).inputs())

    def test_each_device_gets_one_copy(self) -> None:
        job = _job(CASES["sequences"].make(), ("clicked", "user"), ("cuda:0", "cuda:1"))
        target = "cuda:0,cuda:1"
        ranks = empty_ranks(job.stored, target)
        wholes = sharded_of(job.collections, job.stored, target, ranks, torch.float32)
        model = replace_modules(job.model, ranking_of(job, target, ranks, wholes))
        devices = job.stored.envs[target].devices
        traced = traced_model(model, job.input_mapping, devices, torch.float32, job.signature.context)
        graph = finished(traced, is_scripted=True)
        copies = list(graph.script.inlined_graph.findAllNodes("aten::pin_memory"))  # type: ignore[attr-defined]
        assert len(copies) == len(
            {t.rank for g in job.stored.plans[target].plan.values() for s in g.values() for t in s.shards}
        )

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=needs_gpu)
            for name in ("dlrm", "sequences", "weighted and unweighted", "bare collection")
        ],
    )
    def test_on_a_device(self, tmp_path: Path, name: str) -> None:
        artifact = ranked(CASES[name].make(), tmp_path / "a", CONTEXTS[name][0], targets=(("cuda:0",),))
        for rows_per_context in BATCHES.values():
            assert_equal_forms(artifact, batch_of(artifact, rows_per_context))
