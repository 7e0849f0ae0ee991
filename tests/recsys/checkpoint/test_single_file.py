"""Checkpoints: what is written comes back, and nothing else is believed."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recsys import KeyedJaggedTensor
from recsys.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from recsys.checkpoint.single_file import FORMAT_VERSION
from recsys.errors import CheckpointError
from recsys.models.click import build_dlrm

_ARGUMENTS: dict[str, Any] = {
    "tables": [{"name": "user", "num_embeddings": 50, "embedding_dim": 4, "feature_names": ["user"]}],
    "dense_in_features": 2,
    "dense_arch_layer_sizes": [4],
    "over_arch_layer_sizes": [8, 1],
}
_FACTORY = "recsys.models.click:build_dlrm"
_TABLE = "model.sparse_arch.embedding_bag_collection.embedding_bags.user.weight"


def _checkpoint(**changes: Any) -> Checkpoint:
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "factory": _FACTORY,
        "arguments": _ARGUMENTS,
        "state_dict": build_dlrm(**_ARGUMENTS).state_dict(),
        "info": {"data": "test", "metrics": {"auc": 0.75, "ne": None}},
    }
    return Checkpoint(**{**fields, **changes})


def _content(**changes: Any) -> dict[str, Any]:
    good = _checkpoint()
    content = {
        "format": "recsys-checkpoint",
        "format_version": FORMAT_VERSION,
        "factory": good.factory,
        "arguments": good.arguments,
        "state_dict": good.state_dict,
        "info": good.info,
    }
    return {**content, **changes}


def _scores(model: nn.Module) -> torch.Tensor:
    kjt = KeyedJaggedTensor(keys=["user"], values=[3, 49, 0], lengths=[2, 1])
    scores: torch.Tensor = model(torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), kjt)["score"]
    return scores


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
def test_round_trip(tmp_path: Path, mmap: bool) -> None:
    torch.manual_seed(3)
    trained = build_dlrm(**_ARGUMENTS)
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint(state_dict=trained.state_dict()))
    loaded = load_checkpoint(path, mmap=mmap)
    assert (loaded.factory, loaded.arguments) == (_FACTORY, _ARGUMENTS)
    assert loaded.info == {"data": "test", "metrics": {"auc": 0.75, "ne": None}}
    model = build_model(loaded)
    assert torch.equal(_scores(model), _scores(trained))
    assert all(p.requires_grad for p in model.parameters())


def test_the_model_takes_the_mapped_tensors_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint())
    loaded = load_checkpoint(path)
    parameters = dict(build_model(loaded).named_parameters())
    assert parameters[_TABLE].data_ptr() == loaded.state_dict[_TABLE].data_ptr()


def test_writing_to_a_mapped_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint())
    before = path.read_bytes()
    load_checkpoint(path).state_dict[_TABLE].zero_()
    assert path.read_bytes() == before


def test_the_file_is_readable_with_torch_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint())
    content = torch.load(path, weights_only=True)
    assert sorted(content) == ["arguments", "factory", "format", "format_version", "info", "state_dict"]
    assert (content["format"], content["format_version"]) == ("recsys-checkpoint", 1)


def test_strided_and_parameter_tensors_are_saved_dense(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    state = _checkpoint().state_dict
    state[_TABLE] = nn.Parameter(torch.arange(200.0).reshape(4, 50).T)
    save_checkpoint(path, _checkpoint(state_dict=state))
    assert torch.equal(load_checkpoint(path).state_dict[_TABLE], torch.arange(200.0).reshape(4, 50).T)


def test_a_slice_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint(state_dict={"w": torch.zeros(1_000_000)[:10]}))
    assert path.stat().st_size < 100_000


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint())
    before = path.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, _checkpoint(info={}))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"arguments": {"x": {1, 2}}}, r"arguments\.x: got set", id="set"),
        pytest.param({"arguments": {"x": (1, 2)}}, r"arguments\.x: got tuple", id="tuple"),
        pytest.param({"info": {"auc": float("nan")}}, r"info\.auc: got nan", id="nan"),
        pytest.param({"info": {"t": torch.zeros(1)}}, r"info\.t: got Tensor", id="tensor"),
        pytest.param({"state_dict": {"w": [1.0]}}, r"state_dict\['w'\]: got list", id="no-tensor"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        save_checkpoint(tmp_path / "model.pt", _checkpoint(**changes))
    assert list(tmp_path.iterdir()) == []


class _Code:
    """A pickle that runs code when a plain unpickler reads it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("where", ["info", "arguments", "state_dict", "whole"])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path: Path, where: str, mmap: bool) -> None:
    ran = tmp_path / "ran"
    code = _Code(ran)
    path = tmp_path / "model.pt"
    torch.save(code if where == "whole" else _content(**{where: {"x": code}}), path)
    with pytest.raises(CheckpointError, match="not a file of plain data"):
        load_checkpoint(path, mmap=mmap)
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists()  # it would have run: the test can fail


def _text_file(path: Path) -> None:
    path.write_text("hello")


def _empty_file(path: Path) -> None:
    path.write_bytes(b"")


def _plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(_content()))


def _foreign_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")


def _truncated(path: Path) -> None:
    save_checkpoint(path, _checkpoint())
    path.write_bytes(path.read_bytes()[:-200])


def _folder(path: Path) -> None:
    path.mkdir()


def _whole_module(path: Path) -> None:
    torch.save(nn.Linear(2, 2), path)


def _scripted(path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(path))


@pytest.mark.parametrize(
    ("write", "text"),
    [
        pytest.param(_text_file, "not a file of plain data", id="text"),
        pytest.param(_empty_file, "not a file of plain data", id="empty"),
        pytest.param(_plain_pickle, "not a file of plain data", id="pickle"),
        pytest.param(_foreign_zip, "not a file of plain data", id="zip"),
        pytest.param(_truncated, "not a file of plain data", id="truncated"),
        pytest.param(_whole_module, "not a file of plain data", id="module"),
        pytest.param(_scripted, "not a file of plain data", id="torchscript"),
        pytest.param(_folder, "no such file", id="folder"),
        pytest.param(lambda _: None, "no such file", id="missing"),
    ],
)
@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
def test_foreign_and_damaged_files(tmp_path: Path, write: Any, text: str, mmap: bool) -> None:
    path = tmp_path / "model.pt"
    write(path)
    with pytest.raises(CheckpointError, match=text):
        load_checkpoint(path, mmap=mmap)


def test_flipped_bytes_are_an_error_or_other_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, _checkpoint())
    good = path.read_bytes()
    refused = 0
    for position in range(0, len(good), 37):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0xFF]) + good[position + 1 :])
        try:
            model = build_model(load_checkpoint(path))
        except CheckpointError:
            refused += 1
        else:
            assert _scores(model).shape == (2,)
    assert refused > 0


def _without(field: str) -> dict[str, Any]:
    content = _content()
    del content[field]
    return content


def _deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(_checkpoint().state_dict, "not a recsys checkpoint", id="bare-state-dict"),
        pytest.param([1, 2], "not a recsys checkpoint", id="list"),
        pytest.param(_content(format="other"), "not a recsys checkpoint", id="other-format"),
        pytest.param(_content(format_version=2), "got 2, expected at most 1: .*newer", id="newer"),
        pytest.param(_content(format_version="1"), "format_version: got '1'", id="text-version"),
        pytest.param(_content(format_version=True), "format_version: got 'True'", id="flag-version"),
        pytest.param(_content(format_version=0), "format_version: got '0'", id="version-0"),
        pytest.param(_without("format"), "not a recsys checkpoint", id="no-format"),
        pytest.param(_without("format_version"), "format_version", id="no-version"),
        pytest.param(_without("factory"), "factory: missing", id="no-factory"),
        pytest.param(_without("arguments"), "arguments: missing", id="no-arguments"),
        pytest.param(_without("state_dict"), "state_dict: missing", id="no-state-dict"),
        pytest.param(_without("info"), "info: missing", id="no-info"),
        pytest.param(_content(extra=1), r"unknown fields \['extra'\]", id="unknown-field"),
        pytest.param(_content(factory=7), "factory: got int", id="factory-number"),
        pytest.param(_content(arguments=[1]), "arguments: got list", id="arguments-list"),
        pytest.param(_content(arguments={1: 2}), "arguments: got a key of type int", id="key-number"),
        pytest.param(_content(info={"x": _deep()}), "nested deeper", id="deep"),
        pytest.param(_content(state_dict={1: torch.zeros(1)}), "state_dict: got a key", id="tensor-key"),
        pytest.param(
            _content(state_dict={"w": torch.zeros(1).expand(10**9, 64)}), "contiguous", id="claims-256-GB"
        ),
        pytest.param(
            _content(state_dict={"w": torch.zeros(2, 2).to_sparse()}), "dense, contiguous", id="sparse"
        ),
        pytest.param(
            _content(state_dict={"w": torch.zeros(2, device="meta")}), "dense, contiguous", id="meta"
        ),
    ],
)
def test_contents_that_lie(tmp_path: Path, content: Any, text: str) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=text):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "factory",
    [
        "os:system",
        "recsys.checkpoint:load_checkpoint",
        "recsys.models:click",
        "recsys.models_evil:build",
        "recsys.models..click:build_dlrm",
        "recsys.models.click",
        "recsys.models.click:",
        "recsys.models.click:ClickModel",  # a class
        "recsys.models.click:cast",  # imported by the module, not its own
        "recsys.models.click:_table_config",
        "recsys.models.click:build_dlrm.__globals__",
        "recsys.models.nowhere:build",
        "recsys.models.click:nothing",
        "recsys.models.click:build_dlrm\n",
        "recsys.models.../os:system",
    ],
)
def test_factories_outside_the_models_are_refused(factory: str) -> None:
    with pytest.raises(CheckpointError, match="factory: got"):
        build_model(_checkpoint(factory=factory))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"dense_in_features": "2"}, "refuses them: dense_in_features", id="value"),
        pytest.param({"nonsense": 1}, "refuses them: .*nonsense", id="unknown"),
        pytest.param(
            {"dense_in_features": 3}, r"dense_arch.*got .*\[4, 2\], expected .*\[4, 3\]", id="shape"
        ),
        pytest.param({"dense_in_features": 2**62}, "refuses them", id="overflow"),
        pytest.param({"dense_in_features": 10**12}, r"expected .*\[4, 1000000000000\]", id="16-TB"),
    ],
)
def test_arguments_that_do_not_fit(change: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        build_model(_checkpoint(arguments={**_ARGUMENTS, **change}))


def test_tensors_that_do_not_fit() -> None:
    state = _checkpoint().state_dict
    with pytest.raises(CheckpointError, match=r"state_dict: missing \['model.*unknown \['spare'\]"):
        build_model(_checkpoint(state_dict={"spare": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=rf"{_TABLE}.*got torch.float64.*expected torch.float32"):
        build_model(_checkpoint(state_dict={**state, _TABLE: state[_TABLE].double()}))
    with pytest.raises(CheckpointError, match=rf"{_TABLE}.*got .*\[49, 4\], expected .*\[50, 4\]"):
        build_model(_checkpoint(state_dict={**state, _TABLE: state[_TABLE][:49]}))
