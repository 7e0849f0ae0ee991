"""What a ranking form refuses, how the exporter proves it, and what can be chosen.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.cli import main
from export.config import ExportConfig
from export.graph.ranking import RankingCollection, RankingFeatures, jagged_places
from export.pipeline import export_model
from export.verify.ranking import ranking_tolerance
from export.verify.samples import NUM_SAMPLES
from recsys import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor
from recsys.artifact.batches.ranking import RankingBatch, expand
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ExportError, VerificationError
from tests.support.helpers import bag
from tests.support.models.export_models import (
    CASES,
    bare,
    collections,
    dlrm,
)
from tests.support.models.export_ranking import assert_equal_forms, batch_of, ranked


class Reading(nn.Module):
    """Does something with its batch beside looking it up."""

    def __init__(self, read: Callable[[KeyedJaggedTensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.read = read
        self.ebc = EmbeddingBagCollection(
            [bag("users", 30, 8, ["user", "friend"]), bag("goods", 20, 8, ["item"])]
        )

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.read(features)
        pooled = self.ebc(found if isinstance(found, KeyedJaggedTensor) else features)
        made = {name: pooled[name] for name in ("user", "friend", "item")}
        if isinstance(found, KeyedJaggedTensor):
            return made
        return {**made, "read": found.to(torch.float32).unsqueeze(1)}


WRONG_READS: dict[str, tuple[Callable[[KeyedJaggedTensor], Any], str]] = {
    "all lengths": (lambda kjt: kjt.lengths().view(3, -1).sum(dim=0), r"\['user', 'friend'\]"),
    "all values": (lambda kjt: kjt["item"].lengths() + kjt.values().sum() * 0, r"\['user', 'friend'\]"),
    "offsets": (lambda kjt: kjt.offsets()[1:].view(3, -1).sum(dim=0) * 0, r"\['user', 'friend'\]"),
    "weights": (lambda kjt: kjt["item"].lengths() * (kjt.weights_or_none() is None), r"\['user', 'friend'\]"),
    "a dict": (lambda kjt: kjt.to_dict()["item"].lengths(), r"\['user', 'friend'\]"),
    "a copy": (lambda kjt: kjt.to("cpu"), r"\['user', 'friend'\]"),
    "put together": (lambda kjt: KeyedJaggedTensor.concat([kjt]), r"\['user', 'friend'\]"),
    "put together of parts": (
        lambda kjt: KeyedJaggedTensor.concat(kjt.split([1, 2])),
        r"\['user'\]",
    ),
}


RIGHT_READS: dict[str, Callable[[KeyedJaggedTensor], Any]] = {
    "another feature": lambda kjt: kjt["item"].lengths(),
    "the lengths of the context": lambda kjt: kjt["user"].lengths(),
    "the IDs of the context": lambda kjt: kjt["user"].to_padded_dense(2).sum(dim=1),
    "IDs of both": lambda kjt: (
        kjt["friend"].to_padded_dense(3).sum(dim=1) * kjt["item"].to_padded_dense(1)[:, 0]
    ),
    "in another order": lambda kjt: kjt.permute([2, 0, 1]),
    "as it is": lambda kjt: kjt.permute([0, 1, 2]),
    "a part of no context": lambda kjt: kjt.split([2, 1])[1].lengths(),
    "the keys": lambda kjt: kjt["item"].lengths() + len(kjt.keys()),
}


class TestReadingTheBatch:
    """What a model does with a sparse argument beside looking it up."""

    @pytest.mark.parametrize(("read", "features"), WRONG_READS.values(), ids=WRONG_READS)
    def test_of_the_context_is_an_error(
        self, tmp_path: Path, read: Callable[[KeyedJaggedTensor], Any], features: str
    ) -> None:
        with pytest.raises(
            ExportError,
            match=rf"^forward\(features\): features {features} of the context are read outside of a collection.*"
            "leave them out of --context$",
        ):
            ranked(Reading(read), tmp_path / "a", ("user", "friend"))
        assert not (tmp_path / "a").exists()

    @pytest.mark.parametrize("read", RIGHT_READS.values(), ids=RIGHT_READS)
    def test_of_other_features_is_right(
        self, tmp_path: Path, read: Callable[[KeyedJaggedTensor], Any]
    ) -> None:
        artifact = ranked(Reading(read), tmp_path / "a", ("user", "friend"))
        assert_equal_forms(artifact, batch_of(artifact, [5, 0, 2]))

    def test_a_feature_that_no_table_reads_is_an_input(self, tmp_path: Path) -> None:
        artifact = ranked(Reading(lambda kjt: kjt["other"].lengths()), tmp_path / "a", ("user",))
        assert [one.name for one in artifact.signature.sparse if not one.tables] == ["other"]
        assert_equal_forms(artifact, batch_of(artifact, [5, 0, 2]))

    def test_a_part_that_lacks_features(self, tmp_path: Path) -> None:
        # In the ranking form only, because in the plain one it is an error, too.
        model = Reading(lambda kjt: kjt.permute([0, 2]) if isinstance(kjt, RankingFeatures) else kjt)
        with pytest.raises(
            ExportError, match=r"features: got \['user', 'item'\], expected all that the collection"
        ):
            ranked(model, tmp_path / "a", ("user", "friend"))


WRONG_INPUTS: dict[str, Callable[[RankingBatch], dict[str, Any]]] = {
    "a context above all": lambda b: {"row_context": b.row_context + 1},
    "a context below all": lambda b: {"row_context": b.row_context - 1},
    "more rows of contexts": lambda b: {"row_context": torch.cat([b.row_context, b.row_context])},
    "fewer rows of contexts": lambda b: {"row_context": b.row_context[1:]},
    "lengths of one row more": lambda b: {"lengths": torch.cat([b.lengths, b.lengths[:1] * 0])},
    "lengths of twice the rows": lambda b: {"lengths": torch.cat([b.lengths, b.lengths * 0])},
    "lengths that lie": lambda b: {"lengths": b.lengths + 1},
    "lengths below zero": lambda b: {"lengths": b.lengths - 5},
    "context lengths of one more": lambda b: {
        "context_lengths": torch.cat([b.context_lengths, b.context_lengths[:1] * 0])
    },
    "context lengths that lie": lambda b: {"context_lengths": b.context_lengths + 1},
    "context lengths below zero": lambda b: {"context_lengths": b.context_lengths - 5},
    "no contexts": lambda b: {
        "context_lengths": b.context_lengths[:0],
        "context_values": b.context_values[:0],
        "context_weights": b.context_values[:0].float(),
        "dense": (b.dense[0][:0], b.dense[1]),
    },
    "dense rows for a context": lambda b: {"dense": (b.dense[0].repeat(2, 1), b.dense[1])},
    "dense contexts for a row": lambda b: {"dense": (b.dense[0], b.dense[1][:1])},
    "fewer weights": lambda b: {"weights": b.weights[1:] if b.weights is not None else None},
    "fewer context weights": lambda b: {
        "context_weights": b.context_weights[1:] if b.context_weights is not None else None
    },
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    """Dense and sparse inputs of both kinds."""
    context = ("user", "tag", "age")
    return ranked(CASES["weighted and unweighted"].make(), tmp_path_factory.mktemp("wrong") / "a", context)


class TestWrongInputs:
    @pytest.mark.parametrize("change", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
    def test_raise(self, artifact: LoadedArtifact, change: Callable[[RankingBatch], dict[str, Any]]) -> None:
        batch = batch_of(artifact, [6, 5], seed=2)
        assert_equal_forms(artifact, batch)
        with pytest.raises((RuntimeError, IndexError)):
            artifact.forward_ranking(*replace(batch, **change(batch)).inputs())


class TestVerification:
    def test_a_wrong_ranking_form_stops_the_export(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = RankingCollection._side_by_side

        def wrong(self: Any, features: Any, expanded: Tensor, rows: Tensor) -> KeyedTensor:
            return right(self, features, expanded.flip(1), rows)

        monkeypatch.setattr(RankingCollection, "_side_by_side", wrong)
        with pytest.raises(VerificationError, match="what the plain graph makes of the expanded batch"):
            ranked(bare(), tmp_path / "a", ("item",))
        assert not (tmp_path / "a").exists()

    def test_expanding_by_wrong_numbers_stops_the_export(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wrong(lengths: Tensor, picked: Tensor) -> Tensor:
            return jagged_places(lengths, picked.flip(0))

        monkeypatch.setattr("export.graph.ranking.jagged_places", wrong)
        # Else nothing is left to do for each ID.
        monkeypatch.setattr("export.artifact.writing.sink_expansions", lambda _: None)
        with pytest.raises((VerificationError, RuntimeError)):
            ranked(CASES["sequences"].make(), tmp_path / "a", ("clicked",))
        assert not (tmp_path / "a").exists()

    @pytest.mark.parametrize("dense_dtype", ["float32", "bfloat16"])
    def test_the_manifest_tells_the_differences(self, tmp_path: Path, dense_dtype: str) -> None:
        report = export_model(
            dlrm(), tmp_path / "a", ExportConfig(context=("f0", "f1"), dense_dtype=dense_dtype)
        )
        told = load_artifact(tmp_path / "a").manifest.verification
        assert told["num_samples"] == NUM_SAMPLES
        found = report.ranking_differences["cpu"]["default"]
        assert told["ranking_differences"] == {"cpu": {"default": vars(found)}}
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dense_dtype]
        assert 0 <= found.mean_abs <= found.max_abs < ranking_tolerance(dtype, "float32")

    @pytest.mark.parametrize("num_requests", [1, 3])
    def test_contexts_and_rows_are_those_of_the_samples(self, tmp_path: Path, num_requests: int) -> None:
        rows = {"user": [[3], []], "item": [[1, 2], [29]], "last_item": [[0], [1]], "flag": [[2], [2]]}
        lines = [json.dumps({"sparse": rows})] * num_requests
        (tmp_path / "samples").write_text("\n".join(lines))
        artifact = ranked(bare(), tmp_path / "a", ("item",), samples=tmp_path / "samples")
        assert artifact.manifest.verification["num_samples"] == 2 * num_requests
        assert_equal_forms(artifact, batch_of(artifact, [3, 4]))


class TestOptions:
    def test_the_context_stands_in_the_signatures_order(self, tmp_path: Path) -> None:
        artifact = ranked(dlrm(), tmp_path / "a", ("f2", "f0", "dense_features", "f2"))
        assert artifact.signature.context == ("dense_features", "f0", "f2")
        assert [s.name for s in artifact.signature.context_sparse] == ["f0", "f2"]
        assert [s.name for s in artifact.signature.row_sparse] == ["f1", "f3"]

    def test_unknown_inputs_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(
            ExportError, match=r"context: got unknown inputs \['f9', 'x'\], expected some of \['dense"
        ):
            ranked(dlrm(), tmp_path / "a", ("x", "f0", "f9"))

    def test_a_name_of_two_arguments_must_say_which(self, tmp_path: Path) -> None:
        with pytest.raises(
            ExportError, match=r"context: got unknown inputs \['id'\], expected some of \['user.id'"
        ):
            ranked(CASES["two arguments with one name"].make(), tmp_path / "a", ("id",))

    def test_a_single_file_holds_none(self) -> None:
        with pytest.raises(
            ExportError, match=r"single_file: got context \['f0'\], expected none: .* one graph"
        ):
            ExportConfig(context=("f0",), single_file=True)

    def test_the_command_takes_names_in_one_option_or_in_several(self, tmp_path: Path) -> None:
        torch.save(bare().state_dict(), tmp_path / "bare.pth")
        command = [
            str(tmp_path / "bare.pth"),
            "--factory",
            "tests.support.models.factories:make_bare",
            "--out",
        ]
        assert main([*command, str(tmp_path / "a"), "--context", "user,flag", "--context", "item"]) == 0
        artifact = load_artifact(tmp_path / "a")
        assert artifact.signature.context == ("user", "item", "flag")
        assert_equal_forms(artifact, batch_of(artifact, [3, 4]))

    def test_the_command_says_what_is_wrong(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save(bare().state_dict(), tmp_path / "bare.pth")
        command = [str(tmp_path / "bare.pth"), "--factory", "tests.support.models.factories:make_bare"]
        assert main([*command, "--context", "user,"]) == 1
        assert "context: got unknown inputs [''], expected some of ['user'" in capsys.readouterr().err
        assert main([*command, "--context", "user", "--single-file"]) == 2
        assert "single_file: got context ['user'], expected none" in capsys.readouterr().err

    def test_people_are_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save(bare().state_dict(), tmp_path / "bare.pth")
        command = [str(tmp_path / "bare.pth"), "--factory", "tests.support.models.factories:make_bare"]
        assert main([*command, "--context", "user"]) == 0
        told = capsys.readouterr().out
        assert "ranking form against the plain form" in told

    def test_without_a_context_there_is_no_ranking_form(self, case_path: Callable[[str], Path]) -> None:
        path = case_path("dlrm")
        artifact = load_artifact(path, scripted=True)
        assert sorted(file.name for file in path.iterdir()) == [
            "manifest.json",
            "program.safetensors",
            "rows.bin",
            "target-0.pt",
        ]
        assert artifact.ranking is None
        manifest = json.loads((path / "manifest.json").read_text())
        assert "context" not in manifest["signature"]
        assert "ranking" not in manifest["targets"][0]
        assert "ranking_differences" not in manifest["verification"]

    def test_the_plain_form_is_that_of_an_export_without_a_context(
        self, tmp_path: Path, case_path: Callable[[str], Path]
    ) -> None:
        with_context = ranked(dlrm(), tmp_path / "a", ("f0",))
        without = load_artifact(case_path("dlrm"), scripted=True)
        assert (tmp_path / "a" / "rows.bin").read_bytes() == (case_path("dlrm") / "rows.bin").read_bytes()
        batch = expand(with_context.signature, batch_of(with_context, [9]))
        assert torch.equal(
            with_context.forward(*batch.inputs())["default"], without.forward(*batch.inputs())["default"]
        )

    def test_the_float_model_stays_as_it_is(self, tmp_path: Path) -> None:
        model = CASES["sequences"].make()
        before = {path: (type(part), id(part)) for path, part in model.named_modules()}
        weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        ranked(model, tmp_path / "a", ("clicked",))
        assert {path: (type(part), id(part)) for path, part in model.named_modules()} == before
        assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
        assert collections(model)
