"""Where the float model comes from: our checkpoints, or a user's factory and a state dict.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys.checkpoint import build_model, load_checkpoint
from recsys.embedding import tables_on
from recsys.errors import CheckpointError, ExportError

# What DistributedModelParallel and DistributedDataParallel put in front of a state dict's names.
_PREFIXES = ("_dmp_wrapped_module.", "module.")
# Names under which training scripts keep the state dict among other things.
_NESTED = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to load.

    Attributes:
        path: the checkpoint.
        factory: ``package.module:function`` of the user's that makes the model; None where the checkpoint says.
        arguments: the factory's keyword arguments.
        unsafe_pickle: unpickle a whole module, which runs whatever code the file holds.
    """

    path: Path
    factory: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    unsafe_pickle: bool = False


def load_model(source: Source) -> nn.Module:
    """The float model, its tables mapped from the file where the file allows it.

    Raises:
        CheckpointError: the file cannot be read, or does not fit the model.
        ExportError: the factory cannot be used.
    """
    if source.unsafe_pickle:
        return _unpickled(source.path)
    if source.factory is None:
        try:
            return build_model(load_checkpoint(source.path))
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. A plain state dict needs --model MODULE:FUNCTION, a pickled module --unsafe-pickle"
            ) from None
    with tables_on("meta"):
        model = _made(source.factory, source.arguments)
    assign(model, read_state_dict(source.path))
    return model


def _find_here() -> None:
    """Let modules of the working folder be imported, as `python -m` would."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def _made(factory: str, arguments: Mapping[str, Any]) -> nn.Module:
    module_name, _, function_name = factory.partition(":")
    if not module_name or not function_name:
        raise ExportError(f"model: got {factory!r}, expected package.module:function")
    _find_here()
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"model: cannot import {factory!r}: {error}") from None
    except Exception as error:  # the user's module can raise anything
        raise ExportError(f"model: cannot import {factory!r}: {type(error).__name__}: {error}") from error
    try:
        model = function(**arguments)
    except Exception as error:  # the user's code can raise anything
        raise ExportError(f"model: {factory!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ExportError(f"model: {factory!r} returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """A plain state dict.

    Raises:
        CheckpointError: the file cannot be read, or is none.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint: nothing at {path.name!r}")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises many kinds for a file that is none of its own
        raise CheckpointError(
            f"checkpoint {path.name!r}: not readable with weights_only ({type(error).__name__}); a pickled module "
            "is read with --unsafe-pickle only, and runs the code in it"
        ) from None
    for key in _NESTED:
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
            break
    tensors = (
        {name: value for name, value in data.items() if isinstance(value, Tensor)}
        if isinstance(data, dict)
        else {}
    )
    if not tensors:
        raise CheckpointError(f"checkpoint {path.name!r}: got no tensors, expected a state dict")
    return tensors


def _unwrapped(state: Mapping[str, Tensor], expected: Collection[str]) -> Mapping[str, Tensor]:
    """The state dict without wrappers' prefixes, which are taken off one at a time until the names fit."""
    while set(state) != set(expected):
        names = {name: _without_prefix(name, expected) for name in state}
        if list(names) == list(names.values()):
            break
        doubled = sorted({new for new in names.values() if list(names.values()).count(new) > 1})
        if doubled:
            raise CheckpointError(
                f"checkpoint: {_some(doubled)} stand there more than once, but for prefixes"
            )
        state = {names[name]: tensor for name, tensor in state.items()}
    return state


def _without_prefix(name: str, expected: Collection[str]) -> str:
    prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
    return name if name in expected else name.removeprefix(prefix)


def assign(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a model its weights without copying them, with or without the prefixes of wrappers.

    Raises:
        CheckpointError: names what is missing, unknown or of another shape.
    """
    expected = model.state_dict()
    state = _unwrapped(state, expected)
    missing = sorted(set(expected) - set(state))
    unknown = sorted(set(state) - set(expected))
    if missing or unknown:
        raise CheckpointError(
            f"checkpoint: missing {_some(missing)}, unknown {_some(unknown)}; expected the names of the model"
        )
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise CheckpointError(
                f"checkpoint: {name!r} got shape {list(state[name].shape)}, expected {list(tensor.shape)}"
            )
        if state[name].dtype != tensor.dtype:
            raise CheckpointError(f"checkpoint: {name!r} got {state[name].dtype}, expected {tensor.dtype}")
    model.load_state_dict(dict(state), strict=True, assign=True)


def _some(names: list[str]) -> str:
    return (
        "nothing"
        if not names
        else ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    )


def _unpickled(path: Path) -> nn.Module:
    _find_here()
    try:
        model = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # unpickling can raise anything
        raise CheckpointError(f"checkpoint {path.name!r}: cannot be unpickled: {error}") from None
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"checkpoint {path.name!r}: holds {type(model).__name__}, expected a torch.nn.Module"
        )
    return model


def read_arguments(text: str | None) -> dict[str, Any]:
    """A factory's arguments from JSON.

    Raises:
        ExportError: it is no JSON object.
    """
    if text is None:
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"model-args: not readable as JSON: {error}") from None
    if not isinstance(data, dict):
        raise ExportError(f"model-args: got {type(data).__name__}, expected an object of keyword arguments")
    return data
