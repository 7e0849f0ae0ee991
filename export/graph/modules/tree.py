"""The module tree of a user's model, and replacement of modules in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from export.graph.modules.plain_weights import shallow_copy
from export.graph.modules.references import Copies
from recsys.embedding import EmbeddingCollection, with_indices

M = TypeVar("M", bound=nn.Module)
# Where a module keeps the hooks that run before and after its forward.
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
# What tells of a collection's tables; forward may ask for it.
_TELLING = (
    *("embedding_configs", "embedding_bag_configs", "embedding_dim", "embedding_names"),
    *("embedding_names_by_table", "is_weighted", "need_indices"),
    # Their float weights, where forward reads them.
    *("embedding_bags", "embeddings"),
)


def replace_modules(model: nn.Module, replacements: Mapping[str, nn.Module]) -> nn.Module:
    """Return a copy of the module tree in eval mode with some modules replaced.

    Parameters and buffers are shared with the model, which is not changed. New modules get the hooks of those that they
    replace, tell of their tables, and give the IDs with the rows where those did (``need_indices``). What attributes
    refer to by other ways than as submodules, such as bound methods, is that of the copy. Weights that layers compute,
    such as under weight norm, are computed.

    Args:
        model: Any module.
        replacements: New modules by path.
    """
    by_module = {id(model.get_submodule(path)): new for path, new in replacements.items()}
    copies = Copies()
    new = _copied(model, by_module, copies)
    copies.refer_to_copies()
    return new


def has_hooks(module: nn.Module) -> bool:
    """Return whether anything runs before or after a module's ``forward``."""
    return any(getattr(module, name) for name in _HOOKS)


def with_hooks_of(module: nn.Module, new: M) -> M:
    """Return a module's replacement with its hooks."""
    for name in _HOOKS:
        getattr(new, name).update(getattr(module, name))
    return new


def _telling(module: nn.Module, new: nn.Module) -> nn.Module:
    for name in _TELLING:
        if hasattr(module, name) and not hasattr(new, name):
            new.__dict__[name] = getattr(module, name)
    return new


def _giving_indices(module: nn.Module, new: nn.Module) -> nn.Module:
    if isinstance(new, EmbeddingCollection) or not isinstance(module, EmbeddingCollection):
        return new
    tables = module.embedding_configs()
    if module.need_indices() and not getattr(new, "_gives_indices", False):

        def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
            return with_indices(found, tables, *args, **kwargs)

        new.register_forward_hook(add, prepend=True, with_kwargs=True)
        new.__dict__["_gives_indices"] = True
    return new


def _copied(module: nn.Module, by_module: Mapping[int, nn.Module], copies: Copies) -> nn.Module:
    done = copies.of(module)
    if done is not None:
        return done
    if id(module) in by_module:
        new = with_hooks_of(module, by_module[id(module)])
        new = _giving_indices(module, _telling(module, new))
        copies.add(module, new, is_copy=False)
        return new
    if isinstance(module, torch.jit.ScriptModule):
        with torch.no_grad():
            new = copy.deepcopy(module).eval() if module.training else module
        copies.add(module, new, is_copy=False)
        return new
    new = shallow_copy(module)
    copies.add(module, new)
    new.__dict__["_modules"] = {
        name: None if child is None else _copied(child, by_module, copies)
        for name, child in new._modules.items()
    }
    new.training = False
    return new
