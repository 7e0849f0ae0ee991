"""Models made of TorchRec's own modules: their collections are exchanged for ours, their data types while code runs.

TorchRec is never imported here: without it in ``sys.modules`` no model can hold its modules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch import nn

from export.graph.tree import exchanged
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


def with_our_modules(model: nn.Module) -> nn.Module:
    """Return the model with TorchRec's collections exchanged for ours, which share their weights.

    Args:
        model: Any module, which is not changed; it is returned itself if it holds none of TorchRec's.

    Raises:
        ExportError: A collection is of a kind that has no counterpart here; the message names its path.
    """
    if "torchrec" not in sys.modules:
        return model
    replacements: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        ours = _counterpart(path, module)
        if ours is not None:
            replacements[path] = ours
    return exchanged(model, replacements) if replacements else model


@contextmanager
def our_names() -> Iterator[None]:
    """Let TorchRec's data types and collections be ours in all imported modules while the context lasts.

    A model's code that makes a KeyedJaggedTensor, regroups KeyedTensors or asks ``isinstance`` then does so with our
    classes, which it also gets as inputs. Objects that the model already holds are not changed.
    """
    ours = _standing_in()
    if not ours:
        yield
        return
    found: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            names = vars(module)
            found += [(names, name, value) for name, value in list(names.items()) if id(value) in ours]
    try:
        for names, name, value in found:
            names[name] = ours[id(value)]
        yield
    finally:
        for names, name, value in found:
            names[name] = value


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
