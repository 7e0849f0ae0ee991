"""Checkpoints: a trained model as one file of plain data and tensors.

A file of ``torch.save`` that ``torch.load(weights_only=True)`` reads. It names the factory that builds the
model and holds the factory's arguments as plain data, so it contains no code. It is still untrusted:
everything in it is checked before use, and the factory must be a function of ``recsys.models``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys.base.files import open_for_torch, replacing
from recsys.errors import CheckpointError, ManifestError
from recsys.inputs.example_rows import DATA_SKETCH, EXAMPLE_ROWS, hold_example_rows
from recsys.inputs.sketch import hold_data_sketch

FORMAT = "recsys-checkpoint"
FORMAT_VERSION = 1
_FIELDS = {
    "format": str,
    "format_version": int,
    "factory": str,
    "arguments": dict,
    "state_dict": dict,
    "info": dict,
}
_FACTORY = re.compile(r"(recsys\.models(?:\.[a-z][a-z0-9_]*)+):([a-z][a-z0-9_]*)", re.ASCII)
_MAX_DEPTH = 20  # nesting of plain data: far more than any factory's arguments, far less than Python's stack


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model.

    Attributes:
        factory: ``package.module:function``, a function of ``recsys.models`` that returns the model.
        arguments: The factory's arguments by name, as JSON data.
        state_dict: The model's tensors by name.
        info: Further information (data set, metrics, feature names), as plain data.
    """

    factory: str
    arguments: dict[str, Any]
    state_dict: dict[str, Tensor]
    info: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write the file atomically.

    Raises:
        CheckpointError: The checkpoint is not what ``load_checkpoint`` would accept.
        DiskFullError: There is no room for it.
        OSError: The file cannot be written.
    """
    path = Path(path)
    state_dict = {
        name: _compact(tensor) if isinstance(tensor, Tensor) else tensor
        for name, tensor in checkpoint.state_dict.items()
    }
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "factory": checkpoint.factory,
        "arguments": checkpoint.arguments,
        "state_dict": state_dict,
        "info": checkpoint.info,
    }
    _checked(content)
    with replacing(path) as partial, open_for_torch(partial) as file:
        torch.save(_with_each_text_once(content, {}), file)


def load_checkpoint(path: str | os.PathLike[str], mmap: bool = True) -> Checkpoint:
    """Read an untrusted file. Nothing in it is executed.

    Args:
        path: The file.
        mmap: Map the tensors instead of reading them: pages are loaded on use, and writes change only this
            process's copy.

    Raises:
        CheckpointError: The file cannot be used; the message says why.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"checkpoint {str(path)!r}: no such file")
    try:
        content = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    except Exception as error:  # a damaged or hostile file can fail anywhere in the unpickler, in any way
        raise CheckpointError(
            f"checkpoint {path.name!r}: not a file of plain data and tensors that torch.load can read with "
            f"weights_only=True ({type(error).__name__}); expected what recsys-train --out wrote"
        ) from None
    try:
        return _checked(content)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path.name!r}: {error}") from None


def build_model(checkpoint: Checkpoint) -> nn.Module:
    """Return the trained model, with what the checkpoint has of its data.

    Its parameters are the checkpoint's tensors, not copies.

    The model is built on the meta device first, so that arguments for a model larger than the file's tensors
    raise an error instead of allocating memory.

    Raises:
        CheckpointError: The factory is not in ``recsys.models``, rejects its arguments, or the tensors do not
            fit.
    """
    model = empty_model(checkpoint.factory, checkpoint.arguments)
    expected = model.state_dict()
    missing = sorted(set(expected) - set(checkpoint.state_dict))
    unknown = sorted(set(checkpoint.state_dict) - set(expected))
    if missing or unknown:
        raise CheckpointError(
            f"state_dict: missing {missing[:5]} ({len(missing)}), unknown {unknown[:5]} ({len(unknown)})"
        )
    for name, want in expected.items():
        got = checkpoint.state_dict[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise CheckpointError(
                f"state_dict[{name!r}]: got {got.dtype} {list(got.shape)}, "
                f"expected {want.dtype} {list(want.shape)}"
            )
    model.load_state_dict(checkpoint.state_dict, strict=True, assign=True)
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    with_data_of(model, checkpoint.info)
    return model


def with_data_of(model: nn.Module, info: Mapping[str, Any]) -> nn.Module:
    """Return the model, which now holds the example rows and the sketch of the data that a checkpoint has, if any.

    Raises:
        CheckpointError: They are damaged.
    """
    try:
        hold_example_rows(model, info.get(EXAMPLE_ROWS))
        hold_data_sketch(model, info.get(DATA_SKETCH))
    except ManifestError as error:
        raise CheckpointError(str(error)) from None
    return model


def empty_model(factory: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a model on the meta device: its shapes, without memory.

    Args:
        factory: A function of ``recsys.models``.
        arguments: The factory's arguments by name.

    Raises:
        CheckpointError: The factory is not in ``recsys.models``, or rejects its arguments.
    """
    function = _factory(factory)
    try:
        with torch.device("meta"):
            return function(**arguments)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"arguments: {factory} refuses them: {error}") from None


def check_plain(data: Any, at: str) -> None:
    """Check that data is plain: dicts with string keys, lists, strings, finite numbers, True, False and None.

    Raises:
        CheckpointError: The message names the place.
    """
    _check_plain(data, at, _MAX_DEPTH)


def _with_each_text_once(data: Any, texts: dict[str, str]) -> Any:
    """Return plain data in which equal texts are one object: pickle writes objects, so equal data has equal bytes."""
    if isinstance(data, str):
        return texts.setdefault(data, data)
    if isinstance(data, dict):
        return {texts.setdefault(key, key): _with_each_text_once(value, texts) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_each_text_once(item, texts) for item in data]
    return data


def _compact(tensor: Tensor) -> Tensor:
    """Return a dense copy in host memory with a storage of its own, because ``torch.save`` writes whole storages."""
    tensor = tensor.detach().to("cpu")
    if tensor.layout is torch.strided and not tensor.is_meta:
        tensor = tensor.contiguous()
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
    return tensor


def _factory(name: str) -> Callable[..., nn.Module]:
    match = _FACTORY.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"factory: got {name[:80]!r}, expected a function of recsys.models, such as "
            "'recsys.models.click:build_dlrm'"
        )
    try:
        module = importlib.import_module(match[1])
    except ModuleNotFoundError:
        raise CheckpointError(f"factory: got {name[:80]!r}, but there is no module {match[1]!r}") from None
    function = vars(module).get(match[2])
    # Only functions that the module defines, not those that it imports.
    if not inspect.isfunction(function) or function.__module__ != match[1]:
        raise CheckpointError(f"factory: got {name[:80]!r}, but the module does not define it")
    return function


def _checked(content: Any) -> Checkpoint:
    if type(content) is not dict or content.get("format") != FORMAT:
        raise CheckpointError(
            f"not a recsys checkpoint: expected format {FORMAT!r} (recsys-train writes such files)"
        )
    version = content.get("format_version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"format_version: got {str(version)[:80]!r}, expected a whole number from 1")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"format_version: got {version}, expected at most {FORMAT_VERSION}: written by a newer release; "
            "install that one"
        )
    for name, kind in _FIELDS.items():
        if name not in content:
            raise CheckpointError(f"{name}: missing")
        if not isinstance(content[name], kind):
            raise CheckpointError(f"{name}: got {type(content[name]).__name__}, expected {kind.__name__}")
    unknown = [str(name)[:80] for name in content if name not in _FIELDS]
    if unknown:
        raise CheckpointError(f"unknown fields {unknown[:5]}, expected {list(_FIELDS)}")
    check_plain(content["arguments"], "arguments")
    check_plain(content["info"], "info")
    for name, tensor in content["state_dict"].items():
        _check_tensor(name, tensor)
    return Checkpoint(
        factory=content["factory"],
        arguments=content["arguments"],
        state_dict=dict(content["state_dict"]),
        info=content["info"],
    )


def _check_plain(data: Any, at: str, depth: int) -> None:
    if depth == 0:
        raise CheckpointError(f"{at[:80]}: nested deeper than {_MAX_DEPTH} levels")
    if type(data) is dict:
        for key, value in data.items():
            if type(key) is not str:
                raise CheckpointError(f"{at}: got a key of type {type(key).__name__}, expected texts")
            _check_plain(value, f"{at}.{key}", depth - 1)
    elif type(data) is list:
        for i, value in enumerate(data):
            _check_plain(value, f"{at}[{i}]", depth - 1)
    elif type(data) is float and not math.isfinite(data):
        raise CheckpointError(f"{at}: got {data}, expected a finite number")
    elif data is not None and type(data) not in (bool, int, float, str):
        raise CheckpointError(f"{at}: got {type(data).__name__}, expected plain data as JSON knows it")


def _check_tensor(name: Any, tensor: Any) -> None:
    if type(name) is not str:
        raise CheckpointError(f"state_dict: got a key of type {type(name).__name__}, expected texts")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise CheckpointError(f"state_dict[{name!r}]: got {type(tensor).__name__}, expected a tensor")
    # The size of a contiguous tensor is bounded by the file's; a strided one can have any size.
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.is_contiguous():
        raise CheckpointError(f"state_dict[{name!r}]: expected a dense, contiguous tensor")
