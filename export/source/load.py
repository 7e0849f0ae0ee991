"""Sources of the float model: this project's checkpoints, a factory and a state dict, or sharded checkpoints.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from export.config import PlainOptions
from export.plain.convert import Whole, convert_plain
from export.plain.given import EXAMPLE_INPUTS, module_of
from export.source.names import match_names, nearest, some
from export.source.ranks import LocalShards, rank_parts, read_rank_file
from export.source.shards import Parts, directory_parts, put_together
from export.source.torchrec_modules import replace_torchrec_modules, their_tables_on
from recsys.artifact.parts import read_manifest
from recsys.base.files import parse_json
from recsys.checkpoint.dcp_metadata import METADATA_NAME
from recsys.checkpoint.run import TRAINING_NAME, kept, read_record
from recsys.checkpoint.single_file import build_model, empty_model, load_checkpoint, with_data_of
from recsys.embedding import tables_on
from recsys.errors import ArtifactError, CheckpointError, ExportError
from recsys.inputs.example_rows import held_by

# Packages of ours, whose names files of users may have.
_OURS = ("export", "recsys", "serve")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to load.

    Attributes:
        path: The checkpoint: a file, or the directory of a sharded one.
        others: With a file of one rank, the files of the others.
        factory: ``package.module:function`` of the user that makes the model; None if the checkpoint names
            it.
        arguments: The factory's keyword arguments.
        submodule: The path of the part of the model to take; the whole model if it is empty.
        plain: What the user says of a model of plain PyTorch.
        unsafe_pickle: Unpickle a whole module, which may run any code in the file.
        scratch: The folder where tables of a sharded checkpoint are assembled, in unnamed files that take the
            size of the float tables while the model lives; None for the folder of temporary files.
    """

    path: Path
    others: tuple[Path, ...] = ()
    factory: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    submodule: str = ""
    unsafe_pickle: bool = False
    plain: PlainOptions = field(default_factory=PlainOptions)
    scratch: Path | None = None


def load_model(source: Source, notes: list[str] | None = None) -> nn.Module:
    """Return the float model, with tables mapped from files if possible, and with our collections for TorchRec's.

    Those of plain PyTorch are models with collections then.

    Args:
        source: What to load.
        notes: Gets the rules by which weights were found that the file has under other names, or in other types.

    Raises:
        CheckpointError: The checkpoint cannot be read, or does not fit the model.
        ExportError: The factory cannot be used, or a collection of TorchRec's has no counterpart.
    """
    part, whole = trained_model(source, [] if notes is None else notes)
    return convert_plain(part, source.plain, whole)


def _part(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        known = [name for name, _ in model.named_modules() if name.count(".") <= 1 and name]
        raise ExportError(
            f"submodule: {type(model).__name__} has no {path!r}, expected the path of one of its modules, such as "
            f"{some(known)}"
        ) from None


def untrained_model(source: Source) -> tuple[nn.Module, Whole]:
    """Return the model of a factory as it makes it, and what it is a part of.

    Raises:
        ExportError: The factory cannot be used.
    """
    assert source.factory is not None
    whole = _made(source.factory, source.arguments)
    part = replace_torchrec_modules(_part(whole, source.submodule))
    return part, Whole(model=whole, path=source.submodule, factory=source.factory)


def trained_model(source: Source, notes: list[str] | None = None) -> tuple[nn.Module, Whole]:
    """Return the float model as ``load_model`` does, but of plain PyTorch as it is, and what it is a part of."""
    whole = _loaded(source, [] if notes is None else notes)
    part = replace_torchrec_modules(held_by(whole, _part(whole, source.submodule)))
    return part, Whole(model=whole, path=source.submodule, factory=source.factory)


def _loaded(source: Source, notes: list[str]) -> nn.Module:
    if _is_artifact(source.path):
        raise CheckpointError(
            f"checkpoint {source.path.name!r}: this is an artifact already, which recsys-serve takes as it is; "
            "expected what recsys-train wrote, or a state dict with --factory MODULE:FUNCTION"
        )
    if source.unsafe_pickle:
        if source.others or source.path.is_dir():
            raise ExportError("unsafe-pickle: got several files or a directory, expected one file")
        return _unpickled(source.path)
    if source.path.is_dir():
        return _load_directory(source, notes)
    if source.factory is None:
        _needs_factory(source, "a number of files" if source.others else None)
        try:
            return build_model(load_checkpoint(source.path))
        except CheckpointError as error:
            if not source.path.is_file():
                raise
            raise CheckpointError(
                f"{error}. A plain state dict needs --factory MODULE:FUNCTION, a pickled module --unsafe-pickle"
            ) from None
    return _load_files(source, [source.path, *source.others], notes)


def _is_artifact(path: Path) -> bool:
    if not (path.is_dir() or path.is_file()):
        return False
    try:
        read_manifest(path)
    except ArtifactError:
        return False
    return True


def _load_directory(source: Source, notes: list[str]) -> nn.Module:
    if source.others:
        raise CheckpointError(
            f"checkpoint: got the directory {source.path.name!r} and {len(source.others)} more, expected one directory "
            "or the files of all ranks"
        )
    directory = kept(source.path)
    if directory is None:
        files = sorted(path for path in source.path.iterdir() if path.suffix in (".pt", ".pth"))
        if not files:
            raise CheckpointError(
                f"checkpoint {source.path.name!r}: got a directory without {METADATA_NAME} and without .pt files, "
                "expected what torch.distributed.checkpoint, recsys-train or each rank's torch.save wrote"
            )
        names = ", ".join(path.name for path in files[:3]) + (", …" if len(files) > 3 else "")
        _needs_factory(source, f"a folder of state dicts ({names})")
        return _load_files(source, files, notes)
    if source.factory is None and (directory / TRAINING_NAME).is_file():
        record = read_record(directory)
        if record.factory is None:
            _needs_factory(source, "a checkpoint that names no factory")
        model = with_data_of(empty_model(record.factory or "", record.arguments), record.shared)
    else:
        _needs_factory(source, "a directory of torch.distributed.checkpoint")
        model = _empty(source)
    parts = _selected(directory_parts(directory), model.state_dict(), notes)
    return _assembled(model, parts, source, notes)


def _needs_factory(source: Source, what: str | None) -> None:
    if what is not None and source.factory is None:
        raise CheckpointError(
            f"checkpoint {source.path.resolve().name!r}: {what} needs --factory MODULE:FUNCTION, which makes the "
            "model; without it, expected what recsys-train --out or --checkpoint-dir wrote"
        )


def _load_files(source: Source, paths: list[Path], notes: list[str]) -> nn.Module:
    model = _empty(source)
    expected = model.state_dict()
    files = [(path.name, read_rank_file(path, expected, notes)) for path in paths]
    whole = {name: value for name, value in files[0][1].items() if not isinstance(value, LocalShards)}
    if len(files) > 1 or len(whole) < len(files[0][1]):
        return _assembled(model, _renamed(rank_parts(files), expected, notes), source, notes)
    assign(model, whole, notes)
    return model


def _empty(source: Source) -> nn.Module:
    assert source.factory is not None
    with tables_on("meta"):
        return _made(source.factory, source.arguments)


def _assembled(model: nn.Module, parts: Mapping[str, Parts], source: Source, notes: list[str]) -> nn.Module:
    """Return the model with its weights assembled from shards."""
    _check_fit(model.state_dict(), parts)
    assign(model, put_together(parts, source.scratch or Path(tempfile.gettempdir())), notes)
    return model


def _selected(parts: Mapping[str, Parts], expected: Collection[str], notes: list[str]) -> dict[str, Parts]:
    """Return the model's part of a training checkpoint, without optimizers, schedulers and the like."""
    found = _renamed(parts, expected, notes)
    if set(found) & set(expected):
        return {name: part for name, part in found.items() if name in expected}
    return found  # of another model: the error will name some


def _find_here() -> None:
    """Make modules of the working folder importable, as `python -m` does."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def _made(factory: str, arguments: Mapping[str, Any]) -> nn.Module:
    file_name, _, function_name = factory.rpartition(":")
    if not file_name or not function_name:
        raise ExportError(f"model: got {factory!r}, expected package.module:function")
    _find_here()
    module_name = module_of(factory)
    if file_name.endswith(".py") and str(Path(file_name).parent) not in (*sys.path, "."):
        sys.path.insert(0, str(Path(file_name).parent))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"model: cannot import {factory!r}: {error}{_cure(module_name, error)}") from None
    except Exception as error:  # user code can raise anything
        raise ExportError(f"model: cannot import {factory!r}: {type(error).__name__}: {error}") from error
    try:
        with their_tables_on("meta"):
            model = function(**arguments)
    except Exception as error:  # user code can raise anything
        raise ExportError(f"model: {factory!r} failed: {type(error).__name__}: {error}") from error
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module):
        model, example = model
        model.__dict__[EXAMPLE_INPUTS] = example
    if not isinstance(model, nn.Module):
        raise ExportError(f"model: {factory!r} returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def _cure(module_name: str, error: Exception) -> str:
    """Return what to do about a module that cannot be imported, for the causes that are known."""
    package = module_name.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torchrec":
        return (
            "; without TorchRec, give the same command to python -m recsys.as_torchrec -m export "
            "(docs/train/torchrec.md)"
        )
    if package in _OURS:
        return f"; {package!r} is a package of recsys-serving: a file of yours of that name is not found, rename it"
    return ""


def _renamed(state: Mapping[str, T], expected: Collection[str], notes: list[str]) -> dict[str, T]:
    """Return the state by the model's names, and what else there is that may be meant as the model's."""
    matched = match_names(state, expected)
    notes += matched.rules
    names = {**matched.unknown, **matched.names}
    return {name: state[names[name]] for name in names}


def assign(model: nn.Module, state: Mapping[str, Tensor], notes: list[str] | None = None) -> None:
    """Assign weights to a model, without copying where their types are the model's.

    Args:
        model: The model.
        state: Its weights, by names as training scripts save them (``export.source.names``).
        notes: Gets the rules by which they were found.

    Raises:
        CheckpointError: Names what is missing, unknown or of another shape.
    """
    notes = [] if notes is None else notes
    expected = model.state_dict()
    state = _renamed(state, expected, notes)
    _check_fit(expected, state)
    casts = dict.fromkeys(
        (tensor.dtype, expected[name].dtype)
        for name, tensor in state.items()
        if tensor.dtype != expected[name].dtype
    )
    notes += [f"weights of {_short(of)} as {_short(to)}" for of, to in casts]
    cast = {name: tensor.to(expected[name].dtype) for name, tensor in state.items()}
    model.load_state_dict(cast, strict=True, assign=True)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_fit(expected: Mapping[str, Tensor], state: Mapping[str, Tensor] | Mapping[str, Parts]) -> None:
    missing = sorted(set(expected) - set(state))
    unknown = sorted(set(state) - set(expected))
    if missing or unknown:
        raise CheckpointError(
            f"checkpoint: missing {some(missing)}, unknown {some(unknown)}; expected the names of the model"
            f"{nearest(missing, unknown)}"
        )
    for name, tensor in expected.items():
        got = state[name]
        if tuple(got.shape) != tuple(tensor.shape):
            raise CheckpointError(
                f"checkpoint: {name!r} got shape {list(got.shape)}, expected {list(tensor.shape)}"
            )
        if got.dtype != tensor.dtype and not (got.dtype.is_floating_point and tensor.dtype.is_floating_point):
            raise CheckpointError(f"checkpoint: {name!r} got {got.dtype}, expected {tensor.dtype}")


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
    """Return a factory's arguments from JSON.

    Raises:
        ExportError: The text is not a JSON object.
    """
    if text is None:
        return {}
    data = parse_json(text, "factory-args", ExportError)
    if not isinstance(data, dict):
        raise ExportError(f"factory-args: got {type(data).__name__}, expected an object of keyword arguments")
    return data
