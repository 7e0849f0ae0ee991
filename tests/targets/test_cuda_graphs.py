"""CUDA graphs, where there is a GPU: the outputs of ``forward``, one synchronization for each batch, deltas, threads.

Shape letters: B batch.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.measure.gpu import num_synchronizations
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.cuda.graphs import BucketedForward, CudaGraphOptions
from recsys.artifact.delta import apply as delta
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import LoadedArtifact, load_artifact
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.helpers import needs_gpu
from tests.support.models.export_models import CUDA_CASES, assert_close, batch_of

pytestmark = needs_gpu
ROWS = (1, 8, 32)
POOLED = [name for name in CUDA_CASES if name not in ("sequences", "two arguments with one name")]
# Sums of products in another order, and TF32 off.
RELATIVE = 2.0**-12


def _loaded(path: Path, name: str, **options: object) -> tuple[LoadedArtifact, LoadedArtifact]:
    """An artifact on the device, without CUDA graphs and with."""
    case = CUDA_CASES[name]
    config = ExportConfig(
        targets=(("cuda:0",),),
        table_data_types=case.table_data_types,
        **options,  # type: ignore[arg-type]
    )
    export_model(case.make(), path, config)
    return load_artifact(path), load_artifact(path, cuda_graphs=CudaGraphOptions(rows=ROWS))


@pytest.fixture
def dlrm(tmp_path: Path) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Without and with."""
    return _loaded(tmp_path / "a", "dlrm")


def _assert_equal(plain: LoadedArtifact, recorded: LoadedArtifact, relative: float = RELATIVE) -> None:
    for num_rows, empty in (
        (0, False),
        (1, False),
        (2, False),
        (8, False),
        (9, True),
        (32, False),
        (33, False),
    ):
        batch = batch_of(plain.signature, num_rows, seed=num_rows, empty=empty)
        assert_close(recorded.forward(*batch.inputs()), plain.forward(*batch.inputs()), relative)


@pytest.mark.parametrize("name", POOLED)
def test_outputs_are_those_of_forward(tmp_path: Path, name: str) -> None:
    _assert_equal(*_loaded(tmp_path / "a", name))


def test_dense_layers_in_bfloat16(tmp_path: Path) -> None:
    _assert_equal(*_loaded(tmp_path / "a", "dlrm", dense_dtype="bfloat16"), relative=2.0**-5)


def test_batches_are_replayed(dlrm: tuple[LoadedArtifact, LoadedArtifact]) -> None:
    _, recorded = dlrm
    assert isinstance(recorded.graphs, LoadedGraphs)
    bucketed = recorded.graphs.calls[0]
    assert isinstance(bucketed, BucketedForward)
    for num_rows in (1, 5, 32):
        batch = batch_of(recorded.signature, num_rows)
        with torch.inference_mode():
            assert bucketed._replayed(batch.inputs()) is not None


def test_each_batch_waits_once(dlrm: tuple[LoadedArtifact, LoadedArtifact]) -> None:
    for artifact in dlrm:
        call = partial(artifact.forward, *batch_of(artifact.signature, 5).inputs())
        for _ in range(3):
            call()
        assert num_synchronizations(call) == 1


def test_nothing_else_synchronizes(dlrm: tuple[LoadedArtifact, LoadedArtifact]) -> None:
    _, recorded = dlrm
    batch = batch_of(recorded.signature, 5)
    recorded.forward(*batch.inputs())
    with warnings.catch_warnings():
        # Torch warns that the mode is a prototype. It does not count events that are waited for.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            recorded.forward(*batch.inputs())
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_threads_get_their_own_answers(dlrm: tuple[LoadedArtifact, LoadedArtifact]) -> None:
    plain, recorded = dlrm
    batches = [batch_of(plain.signature, rows, seed=rows) for rows in (1, 2, 5, 8, 20) * 20]
    alone = [plain.forward(*batch.inputs()) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: recorded.forward(*batch.inputs()), batches))
    for one, other in zip(alone, together, strict=True):
        assert_close(other, one, RELATIVE)


@pytest.mark.parametrize("with_dense", [False, True], ids=["rows", "rows and dense weights"])
def test_deltas(tmp_path: Path, with_dense: bool) -> None:
    plain, recorded = _loaded(tmp_path / "a", "weighted and unweighted")
    path = tmp_path / "one.delta"
    write_delta(
        path, plain.rows, {"plain.users": range(40), "weighted.tags": range(25)}, with_dense=with_dense
    )
    batch = batch_of(plain.signature, 7)
    before = recorded.forward(*batch.inputs())
    prepared = delta.prepare(recorded.rows, path)
    assert_close(recorded.forward(*batch.inputs()), before, 0.0)
    undo = delta.apply(prepared)
    delta.apply(delta.prepare(plain.rows, path))
    assert not torch.allclose(recorded.forward(*batch.inputs())["output_0"], before["output_0"])
    _assert_equal(plain, recorded)
    delta.apply(undo)
    assert_close(recorded.forward(*batch.inputs()), before, 0.0)


def test_deltas_while_threads_predict(tmp_path: Path) -> None:
    plain, recorded = _loaded(tmp_path / "a", "dlrm")
    batches = [batch_of(plain.signature, rows, seed=rows) for rows in (1, 2, 5, 8, 20) * 40]
    expected = [plain.forward(*batch.inputs()) for batch in batches]
    write_delta(tmp_path / "one.delta", recorded.rows, {}, with_dense=True)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda batch: recorded.forward(*batch.inputs()), batches)
        for _ in range(3):
            # Prepared, and so recorded, but not applied.
            delta.prepare(recorded.rows, tmp_path / "one.delta")
        for outputs, want in zip(found, expected, strict=True):
            assert_close(outputs, want, RELATIVE)
