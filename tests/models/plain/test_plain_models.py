"""Models of plain PyTorch, exported for one and two devices, served, held against the float model.

Shape letters: B batch.
"""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig, PlainOptions, target_name
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from export.plain.convert import convert_plain
from export.verify.compare import END_TO_END_TOLERANCES
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.base.hashing import hash_text
from recsys.inputs.signature import Signature
from serve.client import Client, Context
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig
from tests.models.plain.cases import CASES, called, made, request, stored
from tests.models.test_archetypes import ENGINES
from tests.support.models.export_models import named
from tests.support.serve.live import LiveServer

# The first test waits for all exports.
pytestmark = pytest.mark.timeout(900)

_TARGETS = (("cpu",), ("cpu", "cpu"))
_EXPORTED_ROWS, _EXPORTED_SEED = 24, 1
# One model of each style of inputs gets a delta, in a copy of its artifact.
_WITH_DELTAS = ("din", "mmoe", "sasrec", "fm")
_LATER = "_later"


@dataclass(frozen=True, kw_only=True)
class Served:
    """What servers answer for.

    Attributes:
        models: The float models.
        signatures: Their artifacts'.
        later: Those after the delta, by name.
        addresses: The server of each target and engine.
    """

    models: dict[str, nn.Module]
    signatures: dict[str, Signature]
    later: dict[str, nn.Module]
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All models, each exported once, and a server for each target and engine."""
    repository = tmp_path_factory.mktemp("plain")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models are small
    models = {name: made(case) for name, case in CASES.items()}
    signatures = {name: _export(name, model, repository / name / "1") for name, model in models.items()}
    later = {name: _changed(models[name]) for name in _WITH_DELTAS}
    for name, model in later.items():
        _write_delta(name, models[name], model, repository)
    addresses: dict[str, str] = {}
    with ExitStack() as open_servers:
        for target, engine in itertools.product(map(target_name, _TARGETS), ENGINES):
            settings = ModelSettings(target=target, num_executors=1)
            config = ServerConfig(port=0, metrics_port=0, defaults=settings)
            server = open_servers.enter_context(LiveServer(repository, config, engine=engine))
            for name in later:
                server.apply_delta(f"{name}{_LATER}", "1", "1.delta")
            addresses[f"{target} {engine}"] = server.address
        yield Served(models=models, signatures=signatures, later=later, addresses=addresses)
    torch.set_num_threads(threads)


def _example(name: str) -> Any:
    return CASES[name].batch(_EXPORTED_ROWS, _EXPORTED_SEED)


def _export(name: str, model: nn.Module, path: Path) -> Signature:
    path.parent.mkdir()
    plain = PlainOptions(inputs=_example(name))
    case = CASES[name]
    config = ExportConfig(name=name, targets=_TARGETS, context=case.context, plain=plain, **case.options)
    export_model(model, path, config)
    return Manifest.loads((path / MANIFEST_NAME).read_text()).signature


def _changed(model: nn.Module) -> nn.Module:
    """Return the model after more training: some rows and all layers differ."""
    torch.manual_seed(11)
    later = copy.deepcopy(model)
    for module in later.modules():
        if isinstance(module, nn.Embedding):
            module.weight.data[1::3] += 0.2 * torch.randn_like(module.weight.data[1::3])
        elif isinstance(module, nn.Linear):
            module.weight.data += 0.05 * torch.randn_like(module.weight)
    return later


def _write_delta(name: str, old: nn.Module, new: nn.Module, repository: Path) -> None:
    folder = repository / f"{name}{_LATER}"
    shutil.copytree(repository / name, folder)
    (folder / "deltas").mkdir()
    options = PlainOptions(inputs=_example(name))
    old, new = convert_plain(old, options), convert_plain(new, options)
    export_delta(old, new, folder / "deltas" / "1.delta", DeltaConfig(artifact=folder / "1"))


def _check(found: Mapping[str, np.ndarray], want: Mapping[str, Tensor]) -> None:
    """Check answers against the model over the stored rows."""
    assert list(found) == list(want)
    for output, expected in want.items():
        bound = END_TO_END_TOLERANCES[torch.float32] * max(float(expected.abs().max()), 2.0**-10)
        assert found[output].shape == expected.shape
        np.testing.assert_allclose(found[output], expected.numpy(), rtol=0, atol=bound)


@pytest.mark.parametrize("name", list(CASES))
def test_served_answers_are_the_models(served: Served, name: str) -> None:
    model, example = served.models[name], _example(name)
    exact = stored(model, example)
    for num_rows in (1, 17):
        rows = CASES[name].batch(num_rows, 100 + num_rows)
        want, asked = named(called(exact, rows)), request(model, example, rows, served.signatures[name])
        for address in served.addresses.values():
            _check(_answer(address, name, asked), want)


@pytest.mark.parametrize("name", _WITH_DELTAS)
def test_answers_after_a_delta_are_the_changed_models(served: Served, name: str) -> None:
    model, example = served.later[name], _example(name)
    rows = CASES[name].batch(9, 300)
    want, asked = (
        named(called(stored(model, example), rows)),
        request(model, example, rows, served.signatures[name]),
    )
    before = named(called(stored(served.models[name], example), rows))
    assert all(not torch.allclose(one, before[output], atol=1e-3) for output, one in want.items())
    for address in served.addresses.values():
        _check(_answer(address, f"{name}{_LATER}", asked), want)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.context])
def test_ranking_answers_are_the_models(served: Served, name: str) -> None:
    """The context of the first row is given once, for all rows."""
    model, example, case = served.models[name], _example(name), CASES[name]
    rows = case.batch(9, 200)
    for one in case.context:
        rows[one] = rows[one][:1].expand_as(rows[one]).clone()
    want, asked = (
        named(called(stored(model, example), rows)),
        request(model, example, rows, served.signatures[name]),
    )
    dense, sparse = _dense(asked["dense"]), asked["sparse"]
    context = Context(dense=_some(dense, case.context, 1), sparse=_some(sparse, case.context, 1))
    others = {*dense, *sparse} - {*case.context}
    for address in served.addresses.values():
        with Client(address, model=name) as client:
            _check(client.predict(_some(dense, others, 9), _some(sparse, others, 9), context=context), want)


def test_texts_of_a_hashed_input_are_their_rows(served: Served) -> None:
    name = "dcnv2"
    model, example = served.models[name], _example(name)
    users = ["anna", "bert", "clara"]
    rows = CASES[name].batch(3, 400)
    num_users = model.get_parameter("fields.tables.user.weight").shape[0]
    rows["user"] = torch.tensor([hash_text(user) % num_users for user in users])
    want, asked = (
        named(called(stored(model, example), rows)),
        request(model, example, rows, served.signatures[name]),
    )
    asked["sparse"]["user"] = [[user] for user in users]
    for address in served.addresses.values():
        _check(_answer(address, name, asked), want)


def _answer(address: str, name: str, asked: Mapping[str, Mapping[str, Any]]) -> Mapping[str, np.ndarray]:
    with Client(address, model=name) as client:
        found: Mapping[str, np.ndarray] = client.predict(_dense(asked["dense"]), asked["sparse"])
    return found


def _dense(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(one, np.float32) for name, one in given.items()}


def _some(given: Mapping[str, Any], names: Collection[str], num_rows: int) -> dict[str, Any]:
    return {name: one[:num_rows] for name, one in given.items() if name in names}
