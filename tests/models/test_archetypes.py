"""Models of the field, trained a little, exported for one and two devices, served, held against the float model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.config import ExportConfig, target_name
from export.pipeline import export_model
from recsys import DataType
from recsys.errors import ExportError
from serve.client import Client, Context
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig
from tests.models.archetypes import ARCHETYPES, Rows, call, trained
from tests.support.models.export_models import named, rounded
from tests.support.serve.live import LiveServer, built_engines

_TARGETS = (("cpu",), ("cpu", "cpu"))
ENGINES = built_engines()
# Batches of one row and of several, with rows that have no IDs among them.
_BATCHES = (1, 5, 33)


@dataclass(frozen=True, kw_only=True)
class Served:
    """What all servers answer for a model.

    Attributes:
        model: The trained float model that was exported.
        losses: Of its training.
        addresses: The server of each target and engine.
        failed: Why there is no artifact; None if there is one.
    """

    model: nn.Module
    losses: list[float]
    addresses: dict[str, str]
    failed: ExportError | None = None


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """Every model that a test asks for, from servers that hold all of them."""
    repository = tmp_path_factory.mktemp("models")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models are small
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["name"] for item in items}
    made: dict[str, Served] = {}
    addresses: dict[str, str] = {}
    for name in [name for name in ARCHETYPES if name in wanted]:
        model, losses = trained(ARCHETYPES[name])
        model = ARCHETYPES[name].served(model)
        failed = _export(name, model, repository / name / "1")
        made[name] = Served(model=model, losses=losses, addresses=addresses, failed=failed)
    with ExitStack() as open_servers:
        is_any = any(one.failed is None for one in made.values())
        for target, engine in itertools.product(map(target_name, _TARGETS), ENGINES if is_any else ()):
            settings = ModelSettings(target=target, num_executors=1)
            config = ServerConfig(port=0, metrics_port=0, defaults=settings)
            addresses[f"{target} {engine}"] = open_servers.enter_context(
                LiveServer(repository, config, engine=engine)
            ).address
        yield made
    torch.set_num_threads(threads)


def _export(name: str, model: nn.Module, path: Path) -> ExportError | None:
    path.parent.mkdir()
    case = ARCHETYPES[name]
    config = ExportConfig(name=name, targets=_TARGETS, context=case.context, **case.options)
    try:
        export_model(model, path, config)
    except ExportError as error:
        path.parent.rmdir()
        return error
    return None


def _answer(address: str, name: str, dense: torch.Tensor | None, rows: Rows) -> dict[str, np.ndarray]:
    rows = {feature: rows[feature] for feature in ARCHETYPES[name].asked or rows}
    with Client(address, model=name) as client:
        return dict(client.predict({} if dense is None else {"dense_features": dense.numpy()}, rows))


@pytest.mark.parametrize("target", [target_name(target) for target in _TARGETS])
@pytest.mark.parametrize("name", list(ARCHETYPES))
def test_served_answers_are_the_float_models(served: dict[str, Served], name: str, target: str) -> None:
    one = served[name]
    assert one.losses[-1] < one.losses[0]
    if one.failed is not None:
        raise one.failed
    # Rows are stored in INT8; the float model with the numbers that they hold is what is served.
    exact = rounded(one.model, DataType.INT8)
    for num_rows in _BATCHES:
        dense, rows = ARCHETYPES[name].rows(num_rows, seed=100 + num_rows)
        with torch.no_grad():
            expected = named(call(exact, dense, rows))
        for engine in ENGINES:
            found = _answer(one.addresses[f"{target} {engine}"], name, dense, rows)
            assert list(found) == list(expected)
            for output, want in expected.items():
                assert found[output].shape == want.shape
                if not want.is_floating_point():
                    assert found[output].dtype == np.int64
                    np.testing.assert_array_equal(found[output], want.numpy())
                np.testing.assert_allclose(found[output], want.numpy(), rtol=1e-4, atol=1e-5)


def _ranked(address: str, name: str, dense: torch.Tensor | None, rows: Rows) -> dict[str, np.ndarray]:
    """Return the answers for rows that share the inputs of the context, which are sent once."""
    context = ARCHETYPES[name].context
    shared = {feature: one[:1] for feature, one in rows.items() if feature in context}
    with Client(address, model=name) as client:
        return dict(
            client.predict(
                {},
                {feature: one for feature, one in rows.items() if feature not in context},
                context=Context(
                    dense={} if dense is None else {"dense_features": dense[:1].numpy()}, sparse=shared
                ),
            )
        )


@pytest.mark.parametrize("target", [target_name(target) for target in _TARGETS])
@pytest.mark.parametrize("name", [name for name, case in ARCHETYPES.items() if case.context])
def test_ranking_answers_are_the_float_models(served: dict[str, Served], name: str, target: str) -> None:
    one = served[name]
    if one.failed is not None:
        raise one.failed
    exact = rounded(one.model, DataType.INT8)
    requests = []
    for num_rows in _BATCHES:
        dense, rows = ARCHETYPES[name].rows(num_rows, seed=200 + num_rows)
        for feature in ARCHETYPES[name].context:
            if feature in rows:
                rows[feature] = rows[feature][:1] * num_rows
        requests.append((None if dense is None else dense[:1].repeat(num_rows, 1), rows))
    for engine in ENGINES:
        address = one.addresses[f"{target} {engine}"]
        # At a time, so that a batch has several contexts.
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = list(threads.map(partial(_ranked, address, name), *zip(*requests, strict=True)))
        for (dense, rows), found in zip(requests, answers, strict=True):
            with torch.no_grad():
                expected = named(call(exact, dense, rows))
            assert list(found) == list(expected)
            for output, want in expected.items():
                np.testing.assert_allclose(found[output], want.numpy(), rtol=1e-4, atol=1e-5)
