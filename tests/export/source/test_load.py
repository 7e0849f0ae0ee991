"""Where the float model comes from; hostile files run nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.pipeline import export_model
from export.source.load import Source, load_model, read_arguments
from export.source.ranks import read_rank_file
from recsys.artifact.load import load_artifact
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.configs import DataType
from recsys.errors import CheckpointError, ExportError
from recsys.models.click import build_dlrm
from tests.support.models.export_models import (
    CASES,
    arguments,
    assert_close,
    bare,
    batch_of,
    dlrm,
    predicted,
    rounded,
)

FACTORY = "tests.support.models.factories:make_dlrm"


def save(state: Any, path: Path) -> Path:
    """As a training script does."""
    torch.save(state, path)
    return path


def _equal(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    found = model.state_dict()
    return set(found) == set(state) and all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_dmp_wrapped_module.", "_dmp_wrapped_module.module.", "module.module."]
)
@pytest.mark.parametrize("nested", ["", "state_dict", "model_state_dict", "model"])
def test_state_dicts_as_training_scripts_write_them(tmp_path: Path, prefix: str, nested: str) -> None:
    state = dlrm().state_dict()
    prefixed: Any = {prefix + name: tensor for name, tensor in state.items()}
    path = save({nested: prefixed, "epoch": 3} if nested else prefixed, tmp_path / "state.pt")
    assert _equal(load_model(Source(path=path, factory=FACTORY)), state)


def test_other_things_in_a_state_dict_are_left_alone(tmp_path: Path) -> None:
    state = dlrm().state_dict()
    path = save({**state, "epoch": 3, "name": "best"}, tmp_path / "state.pt")
    assert list(read_rank_file(path)) == list(state)


def test_a_state_dict_is_mapped_not_copied(tmp_path: Path) -> None:
    path = save(dlrm().state_dict(), tmp_path / "state.pt")
    model = load_model(Source(path=path, factory=FACTORY))
    assert str(path) in Path("/proc/self/maps").read_text()
    assert next(model.parameters()).device.type == "cpu"


def test_buffers_that_no_checkpoint_holds_are_kept(tmp_path: Path) -> None:
    source = {f"inner.{name}": tensor for name, tensor in bare().state_dict().items()}
    model = load_model(
        Source(path=save(source, tmp_path / "s.pt"), factory="tests.support.models.factories:Buffered")
    )
    assert torch.equal(model.get_buffer("scale"), torch.full((63,), 2.0))


def test_arguments_reach_the_factory(tmp_path: Path) -> None:
    path = save(dlrm(3, 8).state_dict(), tmp_path / "state.pt")
    model = load_model(Source(path=path, factory=FACTORY, arguments={"num_tables": 3, "dim": 8}))
    assert _equal(model, dlrm(3, 8).state_dict())


def test_our_checkpoints_name_their_factory(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "tables": [{"name": "t", "num_embeddings": 20, "embedding_dim": 8, "feature_names": ["f"]}],
        "dense_in_features": 3,
        "dense_arch_layer_sizes": [8],
        "over_arch_layer_sizes": [4, 1],
    }
    model = build_dlrm(**plain)
    path = tmp_path / "model.pt"
    save_checkpoint(
        path,
        Checkpoint(
            factory="recsys.models.click:build_dlrm", arguments=plain, state_dict=model.state_dict(), info={}
        ),
    )
    loaded = load_model(Source(path=path))
    assert _equal(loaded, model.state_dict())
    export_model(loaded, tmp_path / "a")
    artifact = load_artifact(tmp_path / "a")
    batch = batch_of(artifact.signature, 20)
    call = arguments(artifact.signature, batch, {"sparse_features": {"f": "f"}})
    assert_close(artifact.forward(*batch.inputs()), predicted(rounded(model, DataType.INT8), call))


def _without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in dlrm().state_dict().items() if key != name}


BIAS = "over_arch.model.1.bias"
WEIGHT = "sparse_arch.embedding_bag_collection.embedding_bags.t0.weight"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (_without(BIAS), rf"missing {BIAS}, unknown nothing"),
        ({**_without(BIAS), "novel": torch.ones(1)}, rf"missing {BIAS}, unknown novel"),
        ({}, "got no tensors"),
        ([torch.ones(2)], "got no tensors"),
        (
            {**_without(WEIGHT), WEIGHT: torch.ones(50, 8)},
            r"t0.weight' got shape \[50, 8\], expected \[50, 16\]",
        ),
        ({f"x{i}": torch.ones(1) for i in range(9)}, "and 4 more"),
    ],
    ids=["missing", "renamed", "empty", "a list", "shape", "many"],
)
def test_state_dicts_that_do_not_fit(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model(Source(path=save(state, tmp_path / "state.pt"), factory=FACTORY))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_dlrm", "got 'make_dlrm', expected package.module:function"),
        (":make_dlrm", "expected package.module:function"),
        ("tests.support.models.factories:", "expected package.module:function"),
        ("tests.export.nowhere:make", "cannot import 'tests.export.nowhere:make'"),
        ("tests.support.models.factories:nobody", "cannot import"),
        ("tests.support.models.factories:make_nothing", "returned int, expected a torch.nn.Module"),
        ("tests.support.models.factories:make_trouble", "failed: LookupError: no such feature store"),
        ("tests.support.models.factories:NOT_A_FUNCTION", "failed: TypeError"),
        ("broken_module:make", "cannot import 'broken_module:make': SyntaxError"),
        ("raising_module:make", "cannot import 'raising_module:make': ZeroDivisionError"),
        (".relative:make", "cannot import"),
        ("of_torchrec:make", r"'torchrec'; without TorchRec, .* python -m recsys\.as_torchrec -m export"),
        ("export:make", r"'export' is a package of recsys-serving: .* rename it"),
        ("serve.clicks:make", r"'serve' is a package of recsys-serving: .* rename it"),
    ],
)
def test_factories_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, message: str
) -> None:
    (tmp_path / "broken_module.py").write_text("def make(:\n")
    (tmp_path / "raising_module.py").write_text("1 / 0\n")
    missing = "raise ModuleNotFoundError(\"No module named 'torchrec'\", name='torchrec')\n"
    (tmp_path / "of_torchrec.py").write_text(missing)
    monkeypatch.syspath_prepend(tmp_path)
    path = save(dlrm().state_dict(), tmp_path / "state.pt")
    with pytest.raises(ExportError, match=message):
        load_model(Source(path=path, factory=factory))


class _Payload:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("factory", [FACTORY, None], ids=["--model", "ours"])
@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, kind: str, factory: str | None) -> None:
    evidence = tmp_path / "pwned"
    hostile = {"state_dict": {"w": torch.ones(1)}, "x": _Payload(evidence)}
    path = tmp_path / "model.pt"
    if kind == "torch":
        torch.save(hostile, path)
    else:
        path.write_bytes(pickle.dumps(hostile))
    with pytest.raises(CheckpointError, match=r"not readable|not a|weights_only|no checkpoint"):
        load_model(Source(path=path, factory=factory))
    assert not evidence.exists()


def test_the_payload_is_armed(tmp_path: Path) -> None:
    """What the test above relies on."""
    path = save({"x": _Payload(tmp_path / "pwned")}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError):
        load_model(Source(path=path, unsafe_pickle=True))
    assert (tmp_path / "pwned").is_dir()


def test_a_pickled_module_is_read_where_that_is_asked_for(tmp_path: Path) -> None:
    model = CASES["sequences"].make()
    path = save(model, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="--unsafe-pickle only, and runs the code in it"):
        load_model(Source(path=path, factory=FACTORY))
    assert _equal(load_model(Source(path=path, unsafe_pickle=True)), model.state_dict())


@pytest.mark.parametrize(
    ("content", "message"),
    [({"w": torch.ones(1)}, "holds dict, expected a torch.nn.Module"), (b"", "cannot be")],
)
def test_an_unsafe_pickle_must_be_a_module(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "model.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        load_model(Source(path=path, unsafe_pickle=True))


@pytest.mark.parametrize("unsafe", [True, False])
@pytest.mark.parametrize("factory", [FACTORY, None])
def test_a_missing_checkpoint_is_named(tmp_path: Path, factory: str | None, unsafe: bool) -> None:
    with pytest.raises(CheckpointError, match=r"x\.pt"):
        load_model(Source(path=tmp_path / "x.pt", factory=factory, unsafe_pickle=unsafe))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not readable as JSON"), ("[]", "got list"), ("3", "got int"), ("null", "got NoneType")],
)
def test_arguments_must_be_an_object(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=f"factory-args: {message}"):
        read_arguments(text)


def test_arguments_are_json() -> None:
    assert read_arguments(None) == {}
    assert read_arguments('{"dim": 8, "names": ["a"]}') == {"dim": 8, "names": ["a"]}


@pytest.mark.peer
def test_torchrecs_state_dicts_work_as_they_are(tmp_path: Path) -> None:
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=ImportError)
    peer_dlrm = pytest.importorskip("torchrec.models.dlrm", reason="torchrec is not installed").DLRM
    ours = dlrm()
    pooling = {"SUM": torchrec.PoolingType.SUM, "MEAN": torchrec.PoolingType.MEAN}
    tables = [
        torchrec.EmbeddingBagConfig(
            name=t.name,
            num_embeddings=t.num_embeddings,
            embedding_dim=t.embedding_dim,
            feature_names=t.feature_names,
            pooling=pooling[t.pooling.value],
        )
        for t in ours.sparse_arch.embedding_bag_collection.embedding_bag_configs()
    ]
    torch.manual_seed(11)
    peer = peer_dlrm(torchrec.EmbeddingBagCollection(tables=tables), 5, [32, 16], [32, 1])
    path = save(peer.state_dict(), tmp_path / "peer.pt")
    model = load_model(Source(path=path, factory=FACTORY))
    assert _equal(model, peer.state_dict())
    report = export_model(model, tmp_path / "a")
    artifact = load_artifact(tmp_path / "a")
    batch = batch_of(artifact.signature, 256, seed=5)
    kjt = torchrec.KeyedJaggedTensor(
        keys=[s.name for s in artifact.signature.sparse], values=batch.values, lengths=batch.lengths
    )
    with torch.no_grad():
        expected = peer(batch.dense[0], kjt)
        rounded_model = predicted(
            rounded(model, DataType.INT8),
            arguments(artifact.signature, batch, {"sparse_features": {f"f{i}": f"f{i}" for i in range(4)}}),
        )
    found = artifact.forward(*batch.inputs())
    assert_close(found, rounded_model)
    worst = float((found["default"] - expected).abs().max())
    assert 0 < worst <= 3 * report.differences["cpu"]["default"].max_abs < 0.05
