"""Models made of TorchRec's own modules: ours replace their collections, and their data types while code runs.

TorchRec is never imported here: without it in ``sys.modules`` no model can hold its modules.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import CellType, ModuleType
from typing import Any

import torch
from torch import nn

from export.graph.modules import computes_weights, replace_modules
from export.graph.tracing.source_location import is_of_model
from export.source.torchrec_counterparts import MAKERS
from recsys.as_torchrec.table import load_table
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.managed import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection
from recsys.modules.feature_processors import FeatureProcessorsCollection

_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection)
# What a model's code may make, regroup or test for: ours, which stand for TorchRec's.
_STANDING_IN = (
    *(JaggedTensor, KeyedJaggedTensor, KeyedTensor),
    *_COLLECTIONS,
    *(ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection),
    FeatureProcessorsCollection,
)


def replace_torchrec_modules(model: nn.Module) -> nn.Module:
    """Return the model with ours in place of TorchRec's collections, which share their weights.

    Weights that layers compute, such as under weight norm, are computed.

    Args:
        model: Any module, which is not changed; it is returned itself if there is nothing to replace or to compute.

    Raises:
        ExportError: A collection is of a kind that has no counterpart here; the message names its path.
    """
    replacements: dict[str, nn.Module] = {}
    for path, module in model.named_modules() if "torchrec" in sys.modules else ():
        ours = _counterpart(path, module)
        if ours is not None:
            replacements[path] = ours
    if replacements or any(map(computes_weights, model.modules())):
        return replace_modules(model, replacements)
    return model


@contextmanager
def patch_torchrec_names(*models: nn.Module) -> Iterator[None]:
    """Let TorchRec's data types and collections be ours while the context lasts, wherever code names them.

    A model's code that makes a KeyedJaggedTensor, regroups KeyedTensors or asks ``isinstance`` then does so with our
    classes, which it also gets as inputs. Names stand in modules, in closures, and as attributes of classes and of the
    models' modules. Objects that the models already hold are not changed.

    Args:
        models: Those whose code runs in the context.
    """
    ours = _standing_in()
    if not ours:
        yield
        return
    found = list(_places_of(ours, models))
    try:
        for place, name, value in found:
            _put(place, name, ours[id(value)])
        yield
    finally:
        for place, name, value in found:
            _put(place, name, value)


def _places_of(ours: Mapping[int, type[Any]], models: Sequence[nn.Module]) -> Iterator[tuple[Any, str, Any]]:
    """Yield each place where code names one of TorchRec's classes: what holds it, under which name, and the class."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    parts = [part for model in models for part in model.modules()]
    kinds = dict.fromkeys(kind for part in parts for kind in type(part).__mro__)
    for module in modules:
        values = list(vars(module).items())
        yield from ((vars(module), name, value) for name, value in values if id(value) in ours)
        if _may_name(module):
            # Not isinstance, which asks lazy values for their class.
            classes = [
                value for _, value in values if issubclass(type(value), type) and id(value) not in ours
            ]
            kinds |= dict.fromkeys(kind for kind in classes if kind.__module__ == module.__name__)
    holders = [*parts, *(kind for kind in kinds if _may_name(sys.modules.get(kind.__module__)))]
    for holder in holders:
        yield from ((holder, name, one) for name, one in list(vars(holder).items()) if id(one) in ours)
    for cell in _cells(ours):
        yield cell, "cell_contents", cell.cell_contents


def _put(place: Any, name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    elif isinstance(place, nn.Module):
        place.__dict__[name] = value
    else:
        setattr(place, name, value)


def _may_name(module: ModuleType | None) -> bool:
    """Return whether a module's classes may name TorchRec's: TorchRec's own do so for themselves."""
    if module is None or module.__name__.partition(".")[0] == "torchrec":
        return False
    file = getattr(module, "__file__", None)
    return file is None or is_of_model(file)


def _cells(ours: Mapping[int, type[Any]]) -> list[CellType]:
    """Return the cells of closures that hold TorchRec's classes, but not those of their own methods."""
    theirs = _theirs_of(ours)
    # In one walk over all objects of the process.
    cells = [one for one in gc.get_referrers(*theirs) if isinstance(one, CellType)]
    owned = {
        id(cell)
        for kind in theirs
        for value in vars(kind).values()
        for function in (getattr(value, "__func__", value), getattr(value, "fget", None))
        for cell in getattr(function, "__closure__", None) or ()
    }
    return [cell for cell in cells if id(cell) not in owned]


def _theirs_of(ours: Mapping[int, type[Any]]) -> list[type[Any]]:
    return [theirs for kind in ours.values() if (theirs := _theirs(kind)) is not None]


@contextmanager
def their_tables_on(device: str) -> Iterator[None]:
    """Let TorchRec's collections that are made inside the context have their tables on a device, as ours have."""
    theirs = [_theirs(kind) for kind in _COLLECTIONS]
    kinds: dict[Any, Any] = {kind: kind.__init__ for kind in theirs if kind is not None}
    try:
        for kind, original in kinds.items():
            kind.__init__ = _made_on(device, original)
        yield
    finally:
        for kind, original in kinds.items():
            kind.__init__ = original


def _made_on(device: str, original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments["device"] = torch.device(device)
        original(*given.args, **given.kwargs)

    return init


def _theirs(ours: type[Any]) -> type[Any] | None:
    """Return the class of TorchRec's that one of ours stands for; None if its module is not imported."""
    if "torchrec" not in sys.modules:
        return None
    for name in load_table().names_of(ours):
        found: type[Any] | None = getattr(sys.modules.get(name.module), name.name, None)
        if found is not None and found is not ours:
            return found
    return None


def _standing_in() -> dict[int, type[Any]]:
    """Return our classes by the identity of TorchRec's; none while TorchRec is not imported."""
    return {id(theirs): ours for ours in _STANDING_IN if (theirs := _theirs(ours)) is not None}


def _counterpart(path: str, module: nn.Module) -> nn.Module | None:
    """Return our module for one of TorchRec's; None for any other module."""
    for ours, make in MAKERS.items():
        kind = _theirs(ours)
        if kind is None or not isinstance(module, kind):
            continue
        if type(module).forward is not kind.forward:
            raise ExportError(
                f"{path!r}: got a {type(module).__name__}, whose forward is not that of torchrec."
                f"{ours.__name__}, expected that class itself: what the forward does around the lookup belongs "
                "in the module that calls the collection"
            )
        return make(path, module)
    return None
