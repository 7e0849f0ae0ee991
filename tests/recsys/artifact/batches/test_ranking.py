"""Artifacts with a ranking form: loaded with the same rows, checked like the plain form, and what a batch means.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.batches.ranking import RankingBatch, expand, picked, ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.manifest import Manifest
from recsys.errors import (
    ArtifactError,
    ChecksumError,
    ManifestError,
    MissingPartError,
    PartSizeError,
    TargetError,
)
from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput, TableUse
from recsys.scripting import torchscript
from tests.recsys.artifact.conftest import Ranker
from tests.recsys.artifact.damage import answers, flip, lie, manifest_of, resize_part, same, truncate
from tests.support.models.export_ranking import random_ranking_batch

CONTEXT = ("context", "user", "tag")
SKELETON = "ranking-0.pt"
Json = Any


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound directory of two targets. Not to be written to."""
    path = tmp_path_factory.mktemp("ranking") / "ranker"
    export_model(Ranker(), path, ExportConfig(targets=(("cpu",), ("cpu", "cpu")), context=CONTEXT))
    return path


@pytest.fixture
def ranking(sound: Path, tmp_path: Path) -> Path:
    """A directory of one's own."""
    shutil.copytree(sound, tmp_path / "own")
    return tmp_path / "own"


def batch_of(artifact: LoadedArtifact) -> RankingBatch:
    """Three contexts, one without rows."""
    return random_ranking_batch(artifact.signature, [4, 0, 5], torch.Generator().manual_seed(0))


def ranking_answers(artifact: LoadedArtifact) -> dict[str, Tensor]:
    """The ranking form's answer to a fixed batch."""
    return artifact.forward_ranking(*batch_of(artifact).inputs())


class TestLoading:
    @pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
    def test_both_forms_answer_alike(self, sound: Path, target: str) -> None:
        artifact = load_artifact(sound, target=target)
        expanded = expand(artifact.signature, batch_of(artifact))
        assert same(ranking_answers(artifact), artifact.forward(*expanded.inputs()))

    def test_the_signature_says_what_is_of_the_context(self, sound: Path) -> None:
        signature = load_artifact(sound).signature
        assert signature.context == CONTEXT
        assert [s.name for s in signature.context_sparse] == ["user", "tag"]
        assert [s.name for s in signature.row_sparse] == ["good", "last"]

    def test_rows_and_weights_are_there_once(self, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Frozen modules do not tell their tensors.
        monkeypatch.setattr(torchscript, "freeze", lambda module, _: module)
        artifact = load_artifact(sound)
        assert artifact.ranking is not None
        plain = {**dict(artifact.module.named_parameters()), **dict(artifact.module.named_buffers())}
        second = {**dict(artifact.ranking.named_parameters()), **dict(artifact.ranking.named_buffers())}
        rows = {tensor.data_ptr() for name, tensor in second.items() if name.endswith(".rows")}
        assert rows == {tensor.data_ptr() for name, tensor in plain.items() if name.endswith(".rows")}
        assert len(rows) == 1
        for name in ("model.layer.weight", "model.layer.bias"):
            assert plain[name].data_ptr() == second[name].data_ptr()

    def test_rows_that_change_change_for_both(self, sound: Path) -> None:
        artifact = load_artifact(sound)
        before = ranking_answers(artifact)
        rows = artifact.manifest.layout.blocks[0].rows(artifact.rows.ranks[0].rows)
        rows.copy_(rows.roll(1, dims=0))
        after = ranking_answers(artifact)
        assert not same(before, after)
        expanded = expand(artifact.signature, batch_of(artifact))
        assert same(after, artifact.forward(*expanded.inputs()))

    def test_threads_get_the_same_answers(self, sound: Path) -> None:
        artifact = load_artifact(sound)
        expected = ranking_answers(artifact)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: ranking_answers(artifact), range(16)))
        assert all(same(one, expected) for one in found)

    def test_a_model_without_a_context_says_so(self, pristine: Path) -> None:
        artifact = load_artifact(pristine)
        assert artifact.signature.context == ()
        with pytest.raises(TargetError, match=r"signature.context: got none, expected inputs"):
            artifact.forward_ranking(torch.empty(0))

    def test_older_readers_find_what_they_know(self, sound: Path) -> None:
        # They leave unknown fields alone; the plain form's are where they were.
        data = manifest_of(sound)
        assert data["format_version"] == 1
        for target in data["targets"]:
            assert set(target) - {"program"} == {
                *("name", "devices", "plan", "skeleton", "rows", "ranks", "dense_dtype"),
                "ranking",
            }
            assert set(target["ranking"]) - {"program"} == {"skeleton", "rows", "ranks"}

    def test_the_manifest_reads_back_as_it_was_written(self, sound: Path) -> None:
        text = (sound / "manifest.json").read_text()
        assert Manifest.loads(text).dumps() == text


DAMAGES: dict[str, tuple[Callable[[Path], None], type[ArtifactError], str]] = {
    "missing": (lambda a: (a / SKELETON).unlink(), MissingPartError, f"part '{SKELETON}': missing"),
    "truncated": (lambda a: truncate(a / SKELETON, -1), PartSizeError, f"part '{SKELETON}': got"),
    "empty": (lambda a: truncate(a / SKELETON, 0), PartSizeError, f"part '{SKELETON}': got 0 bytes"),
    "flipped": (lambda a: flip(a / SKELETON, 1000), ChecksumError, f"part '{SKELETON}': its checksum"),
}


class TestDamage:
    @pytest.mark.parametrize(("damage", "kind", "message"), DAMAGES.values(), ids=DAMAGES)
    @pytest.mark.parametrize("verify", [True, False])
    def test_of_the_ranking_form_is_named(
        self,
        ranking: Path,
        damage: Callable[[Path], None],
        kind: type[ArtifactError],
        message: str,
        verify: bool,
    ) -> None:
        damage(ranking)
        with pytest.raises(kind, match=message):
            # Without checksums of what does not run, only that of TorchScript that runs is read.
            load_artifact(ranking, verify_checksums=verify, scripted=not verify)
        # Another target's is another file.
        assert ranking_answers(load_artifact(ranking, target="cpu,cpu"))

    def test_another_program(self, ranking: Path) -> None:
        shutil.copy(ranking / "target-0.pt", ranking / SKELETON)
        resize_part(ranking, SKELETON)
        with pytest.raises(ManifestError, match="the skeleton has other attributes than the manifest says"):
            load_artifact(ranking, scripted=True)


def _ranking(data: Json) -> Json:
    return data["targets"][0]["ranking"]


LIES: dict[str, tuple[Callable[[Json], object], str]] = {
    "an unknown input": (
        lambda m: m["signature"].update(context=["user", "none"]),
        r"signature.context\[1\]: got 'none', expected a dense or sparse input",
    ),
    "an output": (
        lambda m: m["signature"].update(context=["score"]),
        "got 'score', expected a dense or sparse",
    ),
    "a name twice": (
        lambda m: m["signature"].update(context=["user", "user"]),
        "signature.context: names are not unique",
    ),
    "a number": (lambda m: m["signature"].update(context=[7]), r"signature.context\[0\]: got '7'"),
    "a list": (lambda m: m["signature"].update(context=[["user"]]), r"signature.context\[0\]: got"),
    "a text": (
        lambda m: m["signature"].update(context="user"),
        "signature.context: got 'user', expected a list",
    ),
    "null": (lambda m: m["signature"].update(context=None), "signature.context: got 'None', expected a list"),
    "a graph without a context": (
        lambda m: m["signature"].pop("context"),
        r"manifest.targets\[0\].ranking: got a graph, expected null",
    ),
    "an empty context": (
        lambda m: m["signature"].update(context=[]),
        r"manifest.targets\[0\].ranking: got a graph, expected null",
    ),
    "a context without a graph": (
        lambda m: m["targets"][1].pop("ranking"),
        r"manifest.targets\[1\].ranking: got none, expected a graph",
    ),
    "no object": (lambda m: m["targets"][0].update(ranking=[]), r"targets\[0\].ranking.skeleton: missing"),
    "no skeleton": (lambda m: _ranking(m).pop("skeleton"), r"targets\[0\].ranking.skeleton: missing"),
    "no rows": (lambda m: _ranking(m).pop("rows"), r"targets\[0\].ranking.rows: missing"),
    "no ranks": (lambda m: _ranking(m).pop("ranks"), r"targets\[0\].ranking.ranks: missing"),
    "a skeleton of nobody": (lambda m: _ranking(m).update(skeleton="x.pt"), "not among the parts"),
    "a skeleton elsewhere": (lambda m: _ranking(m).update(skeleton="../x.pt"), "expected a plain file name"),
    "a rank too many": (
        lambda m: _ranking(m)["rows"].update({next(iter(_ranking(m)["rows"])): 1}),
        "expected a rank below 1",
    ),
    "other rows": (
        lambda m: _ranking(m).update(rows={"model.layer.weight": 0}),
        "the skeleton has other attributes",
    ),
    "fewer rows": (lambda m: _ranking(m)["rows"].popitem(), "the skeleton has other attributes"),
    "a rank for nothing": (
        lambda m: _ranking(m)["ranks"].update(none=0),
        "the skeleton has other attributes",
    ),
    "no rows file": (lambda m: m["rows"].update(path=None), "in a single file, expected none"),
}


class TestManifest:
    @pytest.mark.parametrize(("change", "message"), LIES.values(), ids=LIES)
    def test_lies_are_named(self, ranking: Path, change: Callable[[Json], object], message: str) -> None:
        lie(ranking, change)
        # The graph in TorchScript is not read where there is a program.
        with pytest.raises(ManifestError, match=message):
            load_artifact(ranking, scripted=True)

    def test_the_order_of_a_context_is_the_writers(self, ranking: Path) -> None:
        before = answers(load_artifact(ranking))
        lie(ranking, lambda m: m["signature"].update(context=["tag", "user", "context"]))
        artifact = load_artifact(ranking)
        # What the graph takes follows the inputs' order, not this one's.
        assert [s.name for s in artifact.signature.context_sparse] == ["user", "tag"]
        assert same(answers(artifact), before)


def _sparse(name: str, *, weighted: bool = False) -> SparseInput:
    return SparseInput(
        name=name, tables=(TableUse(name=name, num_embeddings=100),), pooling="sum", weighted=weighted
    )


SIGNATURE = Signature(
    dense=(DenseInput(name="age", width=1), DenseInput(name="price", width=2)),
    sparse=(_sparse("item"), _sparse("user"), _sparse("ad", weighted=True), _sparse("city")),
    outputs=(Output(name="score", shape=()),),
    context=("user", "city", "age"),
)


def tensor(*values: int) -> Tensor:
    """int64."""
    return torch.tensor(values, dtype=torch.int64)


class TestBatches:
    BATCH = RankingBatch(
        dense=(torch.tensor([[5.0], [6.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])),
        # user: [7, 8], []; city: [1], [2]
        context_lengths=tensor(2, 0, 1, 1),
        context_values=tensor(7, 8, 1, 2),
        context_weights=torch.tensor([0.1, 0.2, 0.3, 0.4]),
        # item: [11], [12], [13, 14]; ad: [], [21], [22]
        lengths=tensor(1, 1, 2, 0, 1, 1),
        values=tensor(11, 12, 13, 14, 21, 22),
        weights=torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        row_context=tensor(1, 0, 1),
    )

    def test_expanded_by_hand(self) -> None:
        found = expand(SIGNATURE, self.BATCH)
        assert found.num_rows == 3
        assert found.dense[0].tolist() == [[6.0], [5.0], [6.0]]
        assert found.dense[1] is self.BATCH.dense[1]
        assert found.lengths.tolist() == [1, 1, 2, 0, 2, 0, 0, 1, 1, 1, 1, 1]
        assert found.values.tolist() == [11, 12, 13, 14, 7, 8, 21, 22, 2, 1, 2]
        assert found.weights is not None
        expected = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.9, 1.0, 0.4, 0.3, 0.4])
        assert torch.equal(found.weights, expected)

    def test_inputs_are_in_the_graphs_order(self) -> None:
        batch = self.BATCH
        expected = [
            *batch.dense,
            *(batch.context_lengths, batch.context_values, batch.context_weights),
            *(batch.lengths, batch.values, batch.weights),
            batch.row_context,
        ]
        assert all(found is want for found, want in zip(batch.inputs(), expected, strict=True))
        unweighted = replace(batch, context_weights=None, weights=None)
        assert len(unweighted.inputs()) == len(expected) - 2

    @pytest.mark.parametrize("bad", [2, -3])
    def test_no_such_context(self, bad: int) -> None:
        with pytest.raises(IndexError):
            expand(SIGNATURE, replace(self.BATCH, row_context=tensor(0, bad, 1)))

    def test_put_together_of_its_expansion(self) -> None:
        expanded = expand(SIGNATURE, self.BATCH)
        # Rows 1 and 0 have contexts 0 and 1.
        again = ranking_batch(SIGNATURE, picked(SIGNATURE, expanded, tensor(1, 0)), expanded, tensor(1, 0, 1))
        for found, want in zip(again.inputs(), self.BATCH.inputs(), strict=True):
            assert torch.equal(found, want)

    def test_picked_rows(self) -> None:
        found = picked(SIGNATURE, expand(SIGNATURE, self.BATCH), tensor(2, 1, 1))
        assert found.num_rows == 3
        assert found.lengths.tolist() == [2, 1, 1, 0, 2, 2, 1, 1, 1, 1, 1, 1]
        assert found.values.tolist() == [13, 14, 12, 12, 7, 8, 7, 8, 22, 21, 21, 2, 1, 1]
        none = picked(SIGNATURE, expand(SIGNATURE, self.BATCH), tensor())
        assert (none.num_rows, none.lengths.numel(), none.values.numel()) == (0, 0, 0)

    @pytest.mark.parametrize("rows_per_context", [[3], [0, 4, 1], [0], []], ids=str)
    def test_random_ones_fit(self, rows_per_context: list[int]) -> None:
        batch = random_ranking_batch(SIGNATURE, rows_per_context, torch.Generator().manual_seed(0))
        num_contexts, num_rows = len(rows_per_context), sum(rows_per_context)
        assert [list(t.shape) for t in batch.dense] == [[num_contexts, 1], [num_rows, 2]]
        assert batch.context_lengths.numel() == 2 * num_contexts
        assert batch.lengths.numel() == 2 * num_rows
        assert int(batch.context_lengths.sum()) == batch.context_values.numel()
        assert int(batch.lengths.sum()) == batch.values.numel()
        assert batch.weights is not None
        assert batch.weights.numel() == batch.values.numel()
        counts = torch.bincount(batch.row_context, minlength=num_contexts).tolist()
        assert counts == rows_per_context
        expanded: Batch = expand(SIGNATURE, batch)
        assert expanded.lengths.numel() == 4 * num_rows
        assert int(expanded.lengths.sum()) == expanded.values.numel()

    def test_a_context_of_everything_or_of_dense_inputs_only(self) -> None:
        for context in (("item", "user", "ad", "city"), ("age",), ("age", "price")):
            signature = replace(SIGNATURE, context=context)
            batch = random_ranking_batch(signature, [2, 3], torch.Generator().manual_seed(1))
            assert batch.row_context.tolist() == [0, 0, 1, 1, 1]
            assert batch.context_lengths.numel() == 2 * len(signature.context_sparse)
            assert batch.lengths.numel() == 5 * len(signature.row_sparse)
            assert expand(signature, batch).lengths.numel() == 20
