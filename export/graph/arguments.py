"""The arguments of a model's ``forward``: which are dense, which are sparse, which are a batch of both."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, nn

from export.graph.place import place_of_forward
from recsys.errors import ExportError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor

DENSE, SPARSE = "dense", "sparse"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of ``forward``.

    Attributes:
        name: Its name.
        kind: ``DENSE``, ``SPARSE``, or None for anything else.
        batch: The dataclass or NamedTuple that it is; None for others.
        fields: Of a batch, each field's kind, as above, by name.
        has_default: Whether ``forward`` can be called without it.
        is_untold: Whether nothing tells what it is: it has no annotation, and no default but None.
        annotation: As it was found.
    """

    name: str
    kind: str | None
    batch: Any
    fields: Mapping[str, str | None]
    has_default: bool
    is_untold: bool
    annotation: object


def parameters(model: nn.Module, said: Mapping[str, str] | None = None) -> list[Parameter]:
    """Return the parameters of a model's ``forward``.

    Args:
        model: Any module.
        said: The kinds of parameters as the user says, for those without an annotation.
    """
    forward = type(model).forward
    hints = _hints(forward)
    found = []
    for name, parameter in list(inspect.signature(forward).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = _unwrapped(hints.get(name))
        is_untold = annotation is None and any(
            parameter.default is one for one in (None, inspect.Parameter.empty)
        )
        batch = annotation if _is_batch(annotation) else None
        found.append(
            Parameter(
                name=name,
                kind=(said or {}).get(name) if is_untold else _kind(annotation),
                batch=batch,
                fields={} if batch is None else _fields(batch),
                has_default=parameter.default is not inspect.Parameter.empty,
                is_untold=is_untold,
                annotation=annotation,
            )
        )
    return found


def arguments(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of ``forward``'s dense and sparse arguments, by their annotations.

    Raises:
        ExportError: An argument without a default is annotated neither Tensor nor KeyedJaggedTensor.
    """
    taken = [parameter for parameter in parameters(model) if not parameter.has_default]
    foreign = [parameter for parameter in taken if parameter.kind is None]
    if foreign:
        names = [parameter.name for parameter in foreign]
        got = ", ".join(str(_shown(parameter.annotation)) for parameter in foreign)
        expected = (
            "torch.Tensor (float32, [B, width]), KeyedJaggedTensor, or a dataclass or NamedTuple of these"
        )
        options = [
            f"--dense-width {one.name}=N or --features {one.name}=F1,F2" for one in foreign if one.is_untold
        ]
        say = f", or say what it is: {'; '.join(options)}" if options else ""
        raise ExportError(
            f"forward({', '.join(names)}): got annotation {got}, expected {expected}. At {place_of_forward(model)}: "
            f"annotate it so{say}; what the model takes otherwise, such as a dict, make of these in the forward of a "
            "module of your own around it, and export that"
        )
    return (
        [parameter.name for parameter in taken if parameter.kind == DENSE],
        [parameter.name for parameter in taken if parameter.kind == SPARSE],
    )


def _shown(annotation: object) -> object:
    return annotation.__qualname__ if type(annotation) is type else annotation


def _hints(of: Any) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(of)
    except (NameError, TypeError, AttributeError):
        return dict(getattr(of, "__annotations__", {}))


def _fields(batch: Any) -> dict[str, str | None]:
    hints = _hints(batch)
    names = getattr(batch, "_fields", None) or list(batch.__dataclass_fields__)
    return {name: _kind(_unwrapped(hints.get(name))) for name in names}


def _is_batch(annotation: object) -> bool:
    if not isinstance(annotation, type) or _kind(annotation) is not None:
        return False
    return is_dataclass(annotation) or (issubclass(annotation, tuple) and hasattr(annotation, "_fields"))


def _kind(annotation: object) -> str | None:
    if annotation is Tensor or annotation in ("Tensor", "torch.Tensor"):
        return DENSE
    # Ours, TorchRec's, or the name of one.
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return SPARSE if name.rpartition(".")[2] == KeyedJaggedTensor.__name__ else None


def _unwrapped(annotation: object) -> object:
    """Return the type within ``Optional``; other types unchanged."""
    inner = [t for t in typing.get_args(annotation) if t is not type(None)]
    optional = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return inner[0] if optional and len(inner) == 1 else annotation
