"""The modules of a collection's tables, by name."""

from __future__ import annotations

from typing import Any

from torch import nn

# Methods of torch.nn.ModuleDict, and a cast, that torch itself calls on no module of a model.
_FREE_NAMES = frozenset({"clear", "items", "keys", "pop", "type", "update", "values"})


class TableModules(nn.ModuleDict):
    """A ``torch.nn.ModuleDict`` whose modules may be called as methods of dict, such as ``items``.

    An attribute is the module of that name if there is one, so that paths such as ``embedding_bags.items.weight`` lead
    to it; the method is hidden then.
    """

    def __getattribute__(self, name: str) -> Any:
        """Return a module of that name, or else the attribute."""
        if name in _FREE_NAMES:
            module = super().__getattribute__("__dict__").get("_modules", {}).get(name)
            if module is not None:
                return module
        return super().__getattribute__(name)

    def _get_name(self) -> str:
        """Return the name that printed models show."""
        return "ModuleDict"

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a module under a name that no attribute has, or that is a free one."""
        if name in _FREE_NAMES:
            self._modules[name] = module  # type: ignore[assignment]
        else:
            super().add_module(name, module)


#: Names that a table cannot have: torch uses these attributes of every module.
TAKEN_NAMES = frozenset(dir(TableModules())) - _FREE_NAMES
