"""Models made of TorchRec's own modules: their collections are exchanged for ours, their data types while code runs.

TorchRec is never imported here: without it in ``sys.modules`` no model can hold its modules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from enum import Enum
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from export.graph.tree import exchanged
from export.source.torchrec_managed import our_mapping
from export.source.torchrec_parts import MAKERS
from recsys.configs import BaseEmbeddingConfig, DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import FLOAT_DTYPES, EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.managed import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection
from recsys.modules.feature_processors import FeatureProcessorsCollection

_COLLECTIONS = "torchrec.modules.embedding_modules"
_MANAGED = "torchrec.modules.mc_embedding_modules"
_DATA_TYPES = "torchrec.sparse.jagged_tensor"
# What a model's code may make, regroup or test for: TorchRec's name, and ours that stands for it.
_STANDING_IN: dict[str, tuple[type[Any], ...]] = {
    _DATA_TYPES: (JaggedTensor, KeyedJaggedTensor, KeyedTensor),
    _COLLECTIONS: (EmbeddingBagCollection, EmbeddingCollection),
    _MANAGED: (ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection),
    "torchrec.modules.feature_processor_": (FeatureProcessorsCollection,),
}
# What a table of TorchRec's says that no float table here can be.
_REFUSED = ("use_virtual_table",)
Config = TypeVar("Config", bound=BaseEmbeddingConfig)
E = TypeVar("E", bound=Enum)


def with_our_modules(model: nn.Module) -> nn.Module:
    """Return the model with TorchRec's collections exchanged for ours, which share their weights.

    Args:
        model: Any module, which is not changed; it is returned itself if it holds none of TorchRec's.

    Raises:
        ExportError: A collection is of a kind that has no counterpart here; the message names its path.
    """
    if _COLLECTIONS not in sys.modules:
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
    module = sys.modules.get(_COLLECTIONS)
    names = [kind.__name__ for kind in _STANDING_IN[_COLLECTIONS]]
    theirs = [vars(module)[name] for name in names if name in vars(module)] if module is not None else []
    kinds = {kind: kind.__init__ for kind in theirs if kind not in _STANDING_IN[_COLLECTIONS]}
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


def _standing_in() -> dict[int, type[Any]]:
    """Return our classes by the identity of TorchRec's; none while TorchRec is not imported."""
    ours: dict[int, type[Any]] = {}
    for path, classes in _STANDING_IN.items():
        module = sys.modules.get(path)
        for kind in classes if module is not None else ():
            theirs = vars(module).get(kind.__name__)
            if theirs is not None and theirs is not kind:
                ours[id(theirs)] = kind
    return ours


def _counterpart(path: str, module: nn.Module) -> nn.Module | None:
    """Return our module for one of TorchRec's; None for any other module."""
    for place, makers in _MAKERS.items():
        theirs = sys.modules.get(place)
        for ours, make in makers.items() if theirs is not None else ():
            kind = vars(theirs).get(ours.__name__)
            if kind is None or kind is ours or not isinstance(module, kind):
                continue
            if type(module).forward is not kind.forward:
                raise ExportError(
                    f"{path!r}: got a {type(module).__name__}, whose forward is not that of torchrec."
                    f"{ours.__name__}, expected that class itself: what the forward does around the lookup belongs "
                    "in the module that calls the collection"
                )
            return make(path, module)
    return None


def _pooled(path: str, theirs: Any) -> EmbeddingBagCollection:
    tables = [_table(path, config, EmbeddingBagConfig) for config in theirs.embedding_bag_configs()]
    ours = EmbeddingBagCollection(tables, is_weighted=theirs.is_weighted(), device=torch.device("meta"))
    _share(theirs.embedding_bags, ours.embedding_bags)
    return ours


def _sequences(path: str, theirs: Any) -> EmbeddingCollection:
    tables = [_table(path, config, EmbeddingConfig) for config in theirs.embedding_configs()]
    ours = EmbeddingCollection(tables, device=torch.device("meta"), need_indices=theirs.need_indices())
    _share(theirs.embeddings, ours.embeddings)
    return ours


def _managed_pooled(path: str, theirs: Any) -> ManagedCollisionEmbeddingBagCollection:
    tables = _pooled(path, theirs._embedding_module)
    mapping = our_mapping(path, theirs._managed_collision_collection, [*tables.embedding_bag_configs()])
    return ManagedCollisionEmbeddingBagCollection(
        tables, mapping, return_remapped_features=theirs._return_remapped_features
    )


def _managed_sequences(path: str, theirs: Any) -> ManagedCollisionEmbeddingCollection:
    tables = _sequences(path, theirs._embedding_module)
    mapping = our_mapping(path, theirs._managed_collision_collection, [*tables.embedding_configs()])
    return ManagedCollisionEmbeddingCollection(
        tables, mapping, return_remapped_features=theirs._return_remapped_features
    )


def _table(path: str, theirs: Any, kind: type[Config]) -> Config:
    """Return our configuration of a table of TorchRec's."""
    at = f"{path!r}: table {theirs.name!r}"
    for name in _REFUSED:
        if getattr(theirs, name, False):
            raise ExportError(
                f"{at}: got {name}={getattr(theirs, name)!r}, expected a table that lies in memory"
            )
    given = {f.name: getattr(theirs, f.name) for f in fields(kind) if hasattr(theirs, f.name)}
    given["feature_names"] = list(theirs.feature_names)
    given["init_fn"] = None  # the weights are there already
    given["data_type"] = _same_named(theirs.data_type, DataType, at)
    if "pooling" in given:
        given["pooling"] = _same_named(theirs.pooling, PoolingType, at)
    if given["data_type"] not in FLOAT_DTYPES:
        raise ExportError(
            f"{at}: got data_type {given['data_type'].value}, expected a float model: the export quantizes it"
        )
    return kind(**given)


def _same_named(theirs: Any, kind: type[E], at: str) -> E:
    name = getattr(theirs, "name", str(theirs))
    if name not in kind.__members__:
        raise ExportError(f"{at}: got {name}, expected one of {', '.join(kind.__members__)}")
    return kind[name]


def _share(theirs: Any, ours: Any) -> None:
    """Let our tables hold TorchRec's weights themselves."""
    for name, module in theirs.items():
        ours[name].weight = module.weight


# Where TorchRec defines its collections, and how ours are made of them; those that hold others come first.
_MAKERS: dict[str, dict[type[nn.Module], Callable[[str, Any], nn.Module]]] = {
    _MANAGED: {
        ManagedCollisionEmbeddingBagCollection: _managed_pooled,
        ManagedCollisionEmbeddingCollection: _managed_sequences,
    },
    _COLLECTIONS: {EmbeddingBagCollection: _pooled, EmbeddingCollection: _sequences},
    **MAKERS,
}
