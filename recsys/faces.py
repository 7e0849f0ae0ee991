"""Names of ``export`` and ``serve``, for programs beside files that are called ``export.py`` or ``serve.py``.

``recsys.client``, ``recsys.export`` and ``recsys.serve`` are such faces.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

# The folder that holds this package, and the two others beside it.
_FOLDER = Path(__file__).resolve().parent.parent


def face(module: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which imports each name at its first use.

    Args:
        module: The module's own name, for errors.
        names: The names that it offers, by the module that has them.
    """
    module_of = {name: source for source, offered in names.items() for name in offered}

    def getattr_(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source = module_of[name]
        _import_package(source.partition(".")[0])
        return getattr(importlib.import_module(source), name)

    return getattr_


def _import_package(package: str) -> None:
    """Import ``export`` or ``serve`` from beside this package, whatever else ``sys.path`` has under its name.

    Raises:
        ImportError: Another module of that name was imported before.
    """
    expected = _FOLDER / package
    if (found := sys.modules.get(package)) is not None:
        folders = [Path(folder).resolve() for folder in getattr(found, "__path__", ())]
        if expected not in folders:
            raise ImportError(
                f"{package}: got {getattr(found, '__file__', None)!r}, imported before, expected "
                "recsys-serving's package: import from recsys first, or rename the file"
            )
        return
    spec = PathFinder.find_spec(package, [str(_FOLDER)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{package}: is missing beside {__package__!r}: install recsys-serving again")
    made = importlib.util.module_from_spec(spec)
    sys.modules[package] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[package]
        raise
