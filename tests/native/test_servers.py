"""Models around whose lookups much happens, exported with and without native kernels, behind servers with and without.

Each server answers as the float model does, or not at all.

Shape letters: B batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.batches.samples import Batch, batch_of_request, request_of_batch
from recsys.artifact.parts import read_manifest
from recsys.configs import DataType
from recsys.inputs.signature import Signature
from recsys.kernels import operators
from serve.client import Client
from tests.conformance.support import harness
from tests.conformance.support.artifacts import SideBySideModel
from tests.export.graph.inputs.test_tables_read import Tied, Unused
from tests.export.graph.tracing.test_python_code import ListsOfParts, MadeInForward, Parametrized, StarShape
from tests.models.timed_hstu import TimedHSTU
from tests.native.models.test_effects import DIM, Towers
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import arguments, assert_close, batch_of, predicted
from tests.support.models.position_models import DensePosition, rows_of, samples_of

pytestmark = needs_kernels

MODELS: dict[str, Callable[[], nn.Module]] = {
    "written-dict": lambda: Towers("latest"),
    "written-list": lambda: Towers("listed"),
    "written-rows": lambda: Towers("added_in_place"),
    "equal-lengths": SideBySideModel,
    "position": DensePosition,
    "star": StarShape,
    "lists": ListsOfParts,
    "made": MadeInForward,
    "parametrized": Parametrized,
    "tied": Tied,
    "unused": Unused,
    "hstu": TimedHSTU,
}
# What a server runs where the native kernels are not built, as a command.
_WITHOUT = (
    "import sys; from recsys.kernels import operators; operators._loaded = lambda: (None, 'not built here'); "
    "from serve.app.cli import main; sys.exit(main())"
)
SERVERS = {
    "native": [sys.executable, "-m", "serve.app.cli", "--engine", "native"],
    "reference": [sys.executable, "-m", "serve.app.cli", "--engine", "reference"],
    "without": [sys.executable, "-c", _WITHOUT, "--engine", "reference"],
}


def _made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def _options(name: str, folder: Path) -> dict[str, Any]:
    if name == "position":
        return {"samples": samples_of("dense", folder / "rows.json"), "dense_widths": {"position": 1}}
    return {"dense_widths": {"default": DIM}} if name.startswith("written") else {}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model twice: exported with the native kernels, and without."""
    root, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("rows")
    for name in MODELS:
        options = {"data_type": DataType.FP32, **_options(name, folder)}
        export_model(_made(name), root / f"{name}.before" / "1", ExportConfig(**options))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operators, "_loaded", lambda: (None, "not built here"))
            export_model(_made(name), root / f"{name}.after" / "1", ExportConfig(**options))
    return root


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[harness.ServerUnderTest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "COMMAND", SERVERS[request.param])
        folder = tmp_path_factory.mktemp("server")
        with harness.running("--repository", repository, folder=folder) as started:
            yield started


def _batch(name: str, signature: Signature, num_rows: int) -> Batch:
    if name == "position":
        return batch_of_request(rows_of("dense", num_rows, seed=5), signature, "rows")
    return batch_of(signature, num_rows, seed=num_rows)


def _answers(client: Client, batch: Batch, signature: Signature) -> dict[str, torch.Tensor]:
    request = request_of_batch(batch, signature)
    assert request is not None
    return {
        name: torch.from_numpy(values.copy())
        for name, values in client.predict(request["dense"], request["sparse"]).items()
    }


@pytest.mark.parametrize("exported", ["before", "after"])
@pytest.mark.parametrize("name", MODELS)
def test_servers_answer_as_the_float_model(
    server: harness.ServerUnderTest, repository: Path, name: str, exported: str
) -> None:
    path = repository / f"{name}.{exported}" / "1"
    signature, model = read_manifest(path).signature, _made(name)
    client = server.client(model=f"{name}.{exported}")
    for num_rows in (1, 5, 130):
        batch = _batch(name, signature, num_rows)
        expected = predicted(model, arguments(signature, batch))
        assert_close(_answers(client, batch, signature), expected, relative=2.0**-13)
