"""Models of plain PyTorch are exported, served by both engines, and answer what they predict.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from export.config import ExportConfig, PlainOptions
from export.pipeline import export_model
from recsys import DataType
from recsys.artifact.parts import read_manifest
from serve.client import Client
from serve.client.errors import InvalidRequestError
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig
from tests.export.plain.models import CASES, NUM_ITEMS, Case, bags_of, made
from tests.support.serve.live import LiveServer, built_engines


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of each model, with float32 rows."""
    folder = tmp_path_factory.mktemp("models")
    for i, case in enumerate(CASES.values()):
        model, example = made(case)
        (folder / f"m{i}").mkdir()
        config = ExportConfig(name=f"m{i}", data_type=DataType.FP32, plain=PlainOptions(inputs=example))
        export_model(model, folder / f"m{i}" / "1", config)
    return folder


@pytest.fixture(scope="module")
def addresses(repository: Path) -> Iterator[Mapping[str, str]]:
    """The server of each engine."""
    with ExitStack() as servers:
        config = ServerConfig(port=0, metrics_port=0, defaults=ModelSettings(num_executors=1))
        yield {
            engine: servers.enter_context(LiveServer(repository, config, engine=engine)).address
            for engine in built_engines()
        }


@pytest.mark.parametrize("name", CASES)
def test_inputs_become_features_and_weights_become_tables(repository: Path, name: str) -> None:
    case = CASES[name]
    manifest = read_manifest(repository / f"m{list(CASES).index(name)}" / "1")
    assert {one.name: one.num_ids for one in manifest.signature.sparse} == {
        feature: size if isinstance(size, int) else None for feature, size in case.sparse.items()
    }
    assert {info.table.name for info in manifest.tables} == case.tables


@pytest.mark.parametrize("name", CASES)
def test_servers_answer_what_the_model_predicts(addresses: Mapping[str, str], name: str) -> None:
    model, example = made(CASES[name])
    with torch.no_grad():
        expected = model(*example) if isinstance(example, tuple) else _called(model, example)
    outputs = expected if isinstance(expected, dict) else {"default": expected}
    dense, sparse = _request(CASES[name], example)
    for address in addresses.values():
        with Client(address, model=f"m{list(CASES).index(name)}") as client:
            found = client.predict(dense, sparse)
        for output, of_model in outputs.items():
            np.testing.assert_allclose(found[output], of_model.numpy(), rtol=1e-4, atol=1e-5)


def _called(model: Any, example: Any) -> Any:
    takes_names = isinstance(example, dict) and "user" in model.forward.__code__.co_varnames[:3]
    return model(**example) if takes_names else model(example)


def _request(case: Case, example: Any) -> tuple[dict[str, np.ndarray], dict[str, list[list[int]]]]:
    tensors: dict[str, Tensor] = example if isinstance(example, dict) else {}
    if not tensors:
        tensors = {
            "history" if isinstance(example, tuple) else "x": example[0]
            if isinstance(example, tuple)
            else example
        }
    sparse, taken = {}, torch.zeros(tensors[next(iter(tensors))][0].numel(), dtype=torch.bool)
    for feature, size in case.sparse.items():
        name, _, columns = feature.partition(".")
        tensor = tensors[name]
        if columns:
            begin, _, end = columns.partition("-")
            tensor = tensor[:, int(begin) : int(end or begin) + 1]
            taken[int(begin) : int(end or begin) + 1] = True
        sparse[feature] = bags_of(tensor, size)
    dense = {name: one for name, one in tensors.items() if one.is_floating_point()}
    return {
        name: (one[:, ~taken] if one.dim() > 1 else one.unsqueeze(1)).numpy() for name, one in dense.items()
    }, sparse


@pytest.mark.parametrize(("feature", "bag"), [("x.1", []), ("x.1", [3, 4]), ("x.3-4", [7])])
def test_servers_refuse_bags_of_other_sizes(
    addresses: Mapping[str, str], feature: str, bag: list[int]
) -> None:
    _, example = made(CASES["columns"])
    _, sparse = _request(CASES["columns"], example)
    sparse[feature][2] = bag
    wanted = 2 if feature == "x.3-4" else 1
    said = rf"sparse\['{feature}'\].lengths: got {len(bag)} in row 2, expected {wanted}, as many as the model takes"
    for address in addresses.values():
        with (
            Client(address, model=f"m{list(CASES).index('columns')}") as client,
            pytest.raises(InvalidRequestError, match=said),
        ):
            client.predict({}, sparse)


@pytest.mark.parametrize("wrong", [NUM_ITEMS, -1])
def test_servers_refuse_ids_beyond_a_weight_that_stays_dense(
    addresses: Mapping[str, str], wrong: int
) -> None:
    _, example = made(CASES["tied"])
    _, sparse = _request(CASES["tied"], example)
    sparse["history"][2] = [3, wrong]
    for address in addresses.values():
        with (
            Client(address, model=f"m{list(CASES).index('tied')}") as client,
            pytest.raises(
                InvalidRequestError, match=f"table 'items' got {wrong}, expected 0 <= ID < {NUM_ITEMS}"
            ),
        ):
            client.predict({}, sparse)
