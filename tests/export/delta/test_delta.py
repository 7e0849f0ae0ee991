"""Deltas end to end: export the old checkpoint, apply the delta, and have what a fresh export of the new one gives.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.delta.report import DeltaReport
from export.pipeline import export_model
from recsys import EmbeddingBagCollection
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from recsys.errors import ArtifactError, DeltaError, ExportError
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.inputs.signature import IdPolicy
from recsys.models.zoo import build_deepfm
from recsys.quant import float_weights
from recsys.rows.quantize import CHUNK_ROWS
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, table_wise
from tests.export.graph.test_managed import Pooled
from tests.recsys.artifact.delta.deltas import digest_of, header_of, read_plainly
from tests.support.helpers import STORED_TYPES, bag
from tests.support.models.export_models import CASES, CopyCase, bare, batch_of, collections, dlrm

BARE = ["--factory", "tests.support.models.factories:make_bare"]
CUTS = ShardingPlan(
    plan={
        "": {
            t.name: column_wise(t, [1, 0]) if t.embedding_dim >= 16 else table_wise(t, 1)
            for t in bare().embedding_bag_configs()
        }
    }
)


def trained(model: nn.Module, share: float = 0.2, seed: int = 0) -> nn.Module:
    """A copy with other numbers in a share of each table's rows, its last row among them; dense weights stay."""
    generator = torch.Generator().manual_seed(seed)
    new = copy.deepcopy(model)
    for collection in collections(new).values():
        for weight in float_weights(collection).values():
            moved = torch.rand(weight.shape[0], generator=generator) < share
            moved[-1] = True
            noise = torch.randn(int(moved.sum()), weight.shape[1], generator=generator)
            weight.data[moved] += noise * 0.1
    return new


def with_dense(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with other dense weights; rows stay."""
    generator = torch.Generator().manual_seed(seed)
    new = copy.deepcopy(model)
    tables = {id(w) for c in collections(new).values() for w in float_weights(c).values()}
    with torch.no_grad():
        for weight in new.parameters():
            if id(weight) not in tables:
                weight += torch.randn(weight.shape, generator=generator) * 0.1
    return new


def rows_of(artifact: LoadedArtifact) -> Tensor:
    """Its bytes in host memory."""
    return artifact.rows.ranks[0].rows


def delta_of(old: nn.Module, new: nn.Module, path: Path, artifact: Path, **options: Any) -> DeltaReport:
    return export_delta(old, new, path, DeltaConfig(artifact=artifact, **options))


def assert_becomes(artifact: LoadedArtifact, delta: Path, fresh: LoadedArtifact) -> None:
    """With the delta, the artifact's rows are the fresh one's byte for byte, and so are predictions."""
    inputs = batch_of(fresh.signature, 40).inputs()
    assert not torch.equal(rows_of(artifact), rows_of(fresh))
    apply(prepare(artifact.rows, delta))
    assert torch.equal(rows_of(artifact), rows_of(fresh))
    expected = fresh.forward(*inputs)
    for name, found in artifact.forward(*inputs).items():
        assert torch.equal(found, expected[name]), name


@pytest.mark.parametrize("name", CASES)
def test_models(tmp_path: Path, name: str, copy_case: CopyCase) -> None:
    case = CASES[name]
    old = case.make()
    new = trained(old)
    copy_case(name, tmp_path / "old")
    export_model(new, tmp_path / "new", ExportConfig(table_data_types=case.table_data_types))
    report = delta_of(old, new, tmp_path / "d", tmp_path / "old")
    artifact = load_artifact(tmp_path / "old")
    assert (report.artifact, report.base, report.digest) == (
        artifact.digest,
        artifact.digest,
        digest_of(tmp_path / "d"),
    )
    assert_becomes(artifact, tmp_path / "d", load_artifact(tmp_path / "new"))


def test_rows_of_values_that_are_hashed_otherwise_are_refused(tmp_path: Path) -> None:
    def made(ids: str, strings: str = "") -> nn.Module:
        torch.manual_seed(0)
        spec = TableSpec(name="t", num_embeddings=40, feature_names=("f",), ids=ids, strings=strings)
        schema = Schema(labels=(LabelColumn(name="y"),), dense=(), tables=(spec,))
        table = {"name": "t", "num_embeddings": 40, "embedding_dim": 8, "feature_names": ["f"]}
        return build_deepfm(
            tables=[table], dense_in_features=0, deep_layer_sizes=[4], inputs=schema.to_json()
        ).eval()

    for old, new, field in (
        (made("hash"), made("fmix64"), "ids = 'fmix64', the old one with 'hash'"),
        (made("hash", "xxh64"), made("hash"), "strings = '', the old one with 'xxh64'"),
    ):
        export_model(old, tmp_path / "a", ExportConfig(overwrite=True))
        with pytest.raises(ExportError, match=rf"table 't': the new checkpoint was trained with {field}"):
            delta_of(old, trained(new), tmp_path / "d", tmp_path / "a")
    export_model(made("hash"), tmp_path / "b", ExportConfig())
    delta_of(made("hash"), trained(made("hash")), tmp_path / "d", tmp_path / "b")


def test_the_ranking_form_reads_the_same_rows(tmp_path: Path) -> None:
    old = dlrm()
    new = trained(old)
    config = ExportConfig(context=("f0", "f2"))
    export_model(old, tmp_path / "old", config)
    export_model(new, tmp_path / "new", config)
    delta_of(old, new, tmp_path / "d", tmp_path / "old")
    artifact, fresh = load_artifact(tmp_path / "old"), load_artifact(tmp_path / "new")
    lengths, values = torch.ones(2 * 3, dtype=torch.int64), torch.arange(6)
    # Two contexts, three rows.
    inputs = (
        torch.zeros(3, 5),
        torch.ones(2 * 2, dtype=torch.int64),
        torch.tensor([49, 7, 109, 8]),
        lengths,
        values,
        torch.tensor([1, 0, 1]),
    )
    before = artifact.forward_ranking(*inputs)["default"]
    assert_becomes(artifact, tmp_path / "d", fresh)
    assert not torch.equal(artifact.forward_ranking(*inputs)["default"], before)
    assert torch.equal(
        artifact.forward_ranking(*inputs)["default"], fresh.forward_ranking(*inputs)["default"]
    )


@pytest.mark.parametrize(
    ("data_type", "policy"),
    [*((each, IdPolicy.ZERO) for each in STORED_TYPES), (DataType.INT8, IdPolicy.REJECT)],
)
def test_row_types_cut_by_columns(tmp_path: Path, data_type: DataType, policy: IdPolicy) -> None:
    old = bare()
    new = trained(old)
    # INT2 rows are refused on CUDA devices.
    others = () if data_type is DataType.INT2 else (("cuda:0", "cuda:1"),)
    config = ExportConfig(targets=(("cpu", "cpu"), *others), plan=CUTS, data_type=data_type, id_policy=policy)
    export_model(old, tmp_path / "old", config)
    export_model(new, tmp_path / "new", config)
    delta_of(old, new, tmp_path / "d", tmp_path / "old")
    artifact = load_artifact(tmp_path / "old")
    assert len(artifact.manifest.layout.blocks) > 4
    assert_becomes(artifact, tmp_path / "d", load_artifact(tmp_path / "new"))
    if policy is IdPolicy.ZERO:
        far = [torch.tensor([1] * 4), torch.tensor([10**9] * 4)]
        assert all(float(row.abs().max()) == 0 for row in artifact.forward(*far).values())


def test_only_rows_whose_stored_bytes_change_are_sent(tmp_path: Path, copy_case: CopyCase) -> None:
    old = bare()
    new = copy.deepcopy(old)
    users = float_weights(new)["users"].data
    users[3] += 1
    users[5] *= 1 + 2.0**-20  # less than INT8 can tell
    wide = float_weights(new)["wide"].data
    wide[0, 0] = wide[0].max() + 1
    copy_case("bare collection", tmp_path / "a")
    report = delta_of(old, new, tmp_path / "d", tmp_path / "a")
    assert {name: numbers for name, (numbers, _) in read_plainly(tmp_path / "d").items()} == {
        "users": [3],
        "wide": [0],
    }
    assert [(t.name, t.num_rows, t.num_embeddings) for t in report.tables] == [
        ("users", 1, 40),
        ("wide", 1, 90),
    ]


def test_minus_zero_is_another_number(tmp_path: Path) -> None:
    old, new = bare(), bare()
    float_weights(old)["tiny"].data[1] = 0.0
    float_weights(new)["tiny"].data[1] = -0.0
    config = ExportConfig(data_type=DataType.FP32)
    export_model(old, tmp_path / "old", config)
    export_model(new, tmp_path / "new", config)
    delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert_becomes(load_artifact(tmp_path / "old"), tmp_path / "d", load_artifact(tmp_path / "new"))


def test_tables_of_many_chunks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = EmbeddingBagCollection([bag("big", 2 * CHUNK_ROWS + 5, 4, ["f"]), bag("small", 3, 4, ["g"])])
    new = copy.deepcopy(old)
    expected = [0, CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS + 4]
    float_weights(new)["big"].data[expected] += 1
    export_model(old, tmp_path / "old")
    export_model(new, tmp_path / "new")
    steps: list[tuple[str, int, int]] = []
    config = DeltaConfig(artifact=tmp_path / "old")
    export_delta(old, new, tmp_path / "d", config, lambda *step: steps.append(step))
    assert read_plainly(tmp_path / "d")["big"][0] == expected
    assert steps[-1] == ("compare", 2 * CHUNK_ROWS + 8, 2 * CHUNK_ROWS + 8)
    assert_becomes(load_artifact(tmp_path / "old"), tmp_path / "d", load_artifact(tmp_path / "new"))


def test_a_single_file(tmp_path: Path) -> None:
    old = dlrm()
    new = trained(old)
    config = ExportConfig(single_file=True)
    export_model(old, tmp_path / "old.pt", config)
    export_model(new, tmp_path / "new.pt", config)
    delta_of(old, new, tmp_path / "d", tmp_path / "old.pt")
    assert_becomes(load_artifact(tmp_path / "old.pt"), tmp_path / "d", load_artifact(tmp_path / "new.pt"))


@pytest.mark.parametrize("data_type", [DataType.FP16, DataType.BF16])
def test_tables_trained_in_half_precision(tmp_path: Path, data_type: DataType) -> None:
    torch.manual_seed(0)
    old = EmbeddingBagCollection([replace(bag("t", 50, 12, ["f"]), data_type=data_type)])
    new = trained(old)
    export_model(old, tmp_path / "old")
    export_model(new, tmp_path / "new")
    delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert_becomes(load_artifact(tmp_path / "old"), tmp_path / "d", load_artifact(tmp_path / "new"))


def test_managed_tables(tmp_path: Path) -> None:
    old = Pooled().eval()
    new = trained(old)
    export_model(old, tmp_path / "old")
    export_model(new, tmp_path / "new")
    delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert_becomes(load_artifact(tmp_path / "old"), tmp_path / "d", load_artifact(tmp_path / "new"))


class TestChains:
    def test_one_after_the_other(self, tmp_path: Path, copy_case: CopyCase) -> None:
        models = [dlrm()]
        for seed in (1, 2, 3):
            models.append(trained(models[-1], seed=seed))
        copy_case("dlrm", tmp_path / "old")
        export_model(models[-1], tmp_path / "new")
        deltas: list[Path] = []
        for i in range(3):
            path = tmp_path / f"{i}.delta"
            report = delta_of(models[i], models[i + 1], path, tmp_path / "old", after=tuple(deltas))
            assert report.base == (digest_of(deltas[-1]) if deltas else report.artifact)
            deltas.append(path)
        artifact = load_artifact(tmp_path / "old")
        with pytest.raises(DeltaError, match=r"delta\.base: got"):
            prepare(artifact.rows, deltas[1])
        for delta in deltas[:-1]:
            apply(prepare(artifact.rows, delta))
        assert_becomes(artifact, deltas[-1], load_artifact(tmp_path / "new"))

    def test_rows_that_went_back(self, tmp_path: Path, copy_case: CopyCase) -> None:
        first = dlrm()
        second = trained(first)
        copy_case("dlrm", tmp_path / "a")
        delta_of(first, second, tmp_path / "1", tmp_path / "a")
        delta_of(second, first, tmp_path / "2", tmp_path / "a", after=(tmp_path / "1",))
        artifact = load_artifact(tmp_path / "a")
        before = rows_of(artifact).clone()
        for name in ("1", "2"):
            apply(prepare(artifact.rows, tmp_path / name))
        assert torch.equal(rows_of(artifact), before)

    def test_a_delta_was_forgotten(self, tmp_path: Path, copy_case: CopyCase) -> None:
        first = dlrm()
        second, third = trained(first, seed=1), trained(first, seed=2)
        copy_case("dlrm", tmp_path / "a")
        with pytest.raises(ExportError, match="or, with --after, the last delta"):
            delta_of(second, third, tmp_path / "2", tmp_path / "a")

    def test_in_another_order(self, tmp_path: Path, copy_case: CopyCase) -> None:
        first = dlrm()
        second = trained(first, seed=1)
        copy_case("dlrm", tmp_path / "a")
        delta_of(first, second, tmp_path / "1", tmp_path / "a")
        with pytest.raises(DeltaError, match=r"delta\.base"):
            delta_of(second, first, tmp_path / "2", tmp_path / "a", after=(tmp_path / "1", tmp_path / "1"))


class TestRefusals:
    @pytest.fixture
    def artifact(self, tmp_path: Path, copy_case: CopyCase) -> Path:
        """An artifact of ``dlrm()``."""
        return copy_case("dlrm", tmp_path / "a")

    def refused(self, old: nn.Module, new: nn.Module, artifact: Path, **options: Any) -> str:
        """The error; nothing is left behind."""
        before = set(artifact.parent.iterdir())
        with pytest.raises(ExportError) as caught:
            delta_of(old, new, artifact.parent / "d", artifact, **options)
        assert set(artifact.parent.iterdir()) == before
        return str(caught.value)

    def test_dense_weights_that_are_left(self, artifact: Path) -> None:
        new = with_dense(trained(dlrm()))
        num_changed = len([name for name, _ in new.named_parameters() if "embedding_bags" not in name])
        report = delta_of(dlrm(), new, artifact.parent / "d", artifact, tables_only=True)
        assert (report.num_dense, report.num_dense_left) == (0, num_changed)
        assert header_of(artifact.parent / "d")["format_version"] == 1
        found = load_artifact(artifact)
        assert prepare(found.rows, artifact.parent / "d").num_dense_left == num_changed

    def test_another_old_checkpoint(self, artifact: Path) -> None:
        text = self.refused(trained(dlrm()), trained(dlrm(), seed=1), artifact)
        assert "the artifact holds other numbers than the old checkpoint" in text
        assert "t0', row " in text

    def test_another_old_checkpoint_where_both_agree(self, artifact: Path) -> None:
        other = trained(dlrm())
        assert "the artifact holds other numbers" in self.refused(other, copy.deepcopy(other), artifact)

    def test_another_model(self, artifact: Path) -> None:
        assert "expected two checkpoints of one model" in self.refused(dlrm(), bare(), artifact)
        assert "expected two checkpoints of one model" in self.refused(dlrm(), dlrm(dim=8), artifact)

    def test_the_artifact_of_another_model(self, artifact: Path) -> None:
        assert "the checkpoints lack tables" in self.refused(bare(), trained(bare()), artifact)
        bigger = dlrm(dim=8)
        assert "[50, 8] in the checkpoints, expected [50, 16]" in self.refused(
            bigger, trained(bigger), artifact
        )

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e9])
    def test_a_number_that_cannot_be_stored(self, artifact: Path, number: float) -> None:
        new = dlrm()
        float_weights(next(iter(collections(new).values())))["t1"].data[7, 2] = number
        for text, models in (("new", (dlrm(), new)), ("old", (new, dlrm()))):
            found = self.refused(*models, artifact)
            assert found.startswith(f"delta: {text} checkpoint: table ")
            assert "t1', row 7" in found

    def test_a_missing_artifact(self, tmp_path: Path) -> None:
        with pytest.raises(ArtifactError, match="got 'a', which does not exist"):
            delta_of(dlrm(), dlrm(), tmp_path / "d", tmp_path / "a")
