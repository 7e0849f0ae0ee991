"""Models that fail on zeros and on random numbers are exported, loaded and warmed up by the user's rows.

Shape letters: B batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys import KeyedJaggedTensor
from recsys.artifact.batches.samples import Batch, batch_of_request
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ExportError
from recsys.inputs.example_rows import ExampleRows, hold_example_rows
from serve.config.models import BatchLimits
from serve.engine.reference.executor import collate
from serve.engine.reference.warm_up import warm_up_batches
from tests.support.models.position_models import MODELS, TasksAtPositions, rows_of, samples_of


def _config(name: str, folder: Path, num_rows: int = 20, **options: Any) -> ExportConfig:
    widths = {"position": 1} if name == "dense" else {}
    samples = samples_of(name, folder / "samples.json", num_rows)
    return ExportConfig(samples=samples, dense_widths=widths, **options)


def _expected(model: nn.Module, batch: Batch, signature: Any) -> torch.Tensor:
    keys = [one.name for one in signature.sparse]
    features = KeyedJaggedTensor(keys, batch.values, lengths=batch.lengths)
    expected: torch.Tensor = model(features, *batch.dense)
    return expected


def _assert_predicts(model: nn.Module, artifact: LoadedArtifact, name: str) -> None:
    batch = batch_of_request(rows_of(name, 33, seed=7), artifact.signature, "rows")
    (found,) = artifact.forward(*batch.inputs()).values()
    torch.testing.assert_close(found, _expected(model, batch, artifact.signature), atol=0.05, rtol=0)


def _assert_warms_up(artifact: LoadedArtifact) -> None:
    rows = artifact.manifest.verified_rows()
    assert rows is not None
    sizes = set()
    for batch in warm_up_batches(artifact.signature, BatchLimits(), rows):
        inputs = collate(batch)
        is_ranking = batch[0].context is not None
        (artifact.forward_ranking if is_ranking else artifact.forward)(*inputs)
        sizes.add(sum(request.num_rows for request in batch))
    assert {1, 128} <= sizes


@pytest.mark.parametrize("num_rows", [1, 20], ids="samples={}".format)
@pytest.mark.parametrize("name", MODELS)
def test_positions_of_samples_are_enough(tmp_path: Path, name: str, num_rows: int) -> None:
    model = MODELS[name]().eval()
    export_model(model, tmp_path / "a", _config(name, tmp_path, num_rows, accept_unproven=num_rows == 1))
    artifact = load_artifact(tmp_path / "a")
    _assert_predicts(model, artifact, name)
    _assert_warms_up(artifact)
    assert artifact.manifest.example_batch() is not None


@pytest.mark.parametrize(("name", "context"), [("dense", ("position",)), ("dense", ("user",))])
def test_positions_of_the_context(tmp_path: Path, name: str, context: tuple[str, ...]) -> None:
    model = MODELS[name]().eval()
    export_model(model, tmp_path / "a", _config(name, tmp_path, context=context))
    artifact = load_artifact(tmp_path / "a")
    _assert_predicts(model, artifact, name)
    _assert_warms_up(artifact)


@pytest.mark.parametrize("name", MODELS)
def test_dense_deltas_of_models_with_positions(tmp_path: Path, name: str) -> None:
    old, new = MODELS[name]().eval(), MODELS[name]().eval()
    with torch.no_grad():
        new.get_parameter("positions").mul_(2)
    export_model(old, tmp_path / "a", _config(name, tmp_path))
    export_delta(old, new, tmp_path / "d", DeltaConfig(artifact=tmp_path / "a"))
    artifact = load_artifact(tmp_path / "a")
    apply(prepare(artifact.rows, tmp_path / "d"))
    _assert_predicts(new, artifact, name)


def test_held_out_rows_of_the_training_are_enough(tmp_path: Path) -> None:
    model = MODELS["feature"]().eval()
    rows = ExampleRows(num_rows=30, dense={}, sparse=rows_of("feature", 30)["sparse"])
    hold_example_rows(model, rows.to_json())
    # The lengths of random bags would not fit: each row has one position.
    report = export_model(model, tmp_path / "a")
    assert report.samples == "30 held-out rows of the training (the model fails on random ones)"
    artifact = load_artifact(tmp_path / "a")
    _assert_predicts(model, artifact, "feature")
    _assert_warms_up(artifact)


def test_without_rows_of_the_user_such_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"model: forward failed on the samples: .*give --samples"):
        export_model(MODELS["dense"]().eval(), tmp_path / "a", ExportConfig(dense_widths={"position": 1}))


def test_exported_programs_of_several_tasks_with_positions(tmp_path: Path) -> None:
    model = TasksAtPositions().eval()
    export_model(
        model, tmp_path / "a", _config("dense", tmp_path, graph_format="both", context=("position",))
    )
    for load in (load_exported_artifact, load_artifact):
        artifact = load(tmp_path / "a")
        batch = batch_of_request(rows_of("dense", 33, seed=7), artifact.signature, "rows")
        expected = model(KeyedJaggedTensor(["user"], batch.values, lengths=batch.lengths), *batch.dense)
        for name, found in artifact.forward(*batch.inputs()).items():
            torch.testing.assert_close(found, expected[name], atol=0.05, rtol=0.05)
        _assert_warms_up(artifact)
    assert artifact.manifest.fitting_examples()
