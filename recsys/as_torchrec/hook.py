"""The import hook: ``torchrec`` and the modules below it, made from the table.

A name is imported from this library when it is first asked for. Every module is a package for the import system, also
where TorchRec's is a file: ``from module import name`` then asks the finder for a name that the module lacks, and the
finder's error can say what is wrong with it. Names and modules that are left out can be imported, and fail when they
are used (``left_out``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from recsys.as_torchrec.left_out import LeftOutError, handles_import_errors, left_out, reads_attribute
from recsys.as_torchrec.table import Table, load_table

_ROOT = "torchrec"


class _Module(ModuleType):
    """A module of TorchRec's, whose names are imported on first access."""

    def __init__(self, name: str, table: Table) -> None:
        super().__init__(name, f"TorchRec's {name}, answered by recsys.as_torchrec.")
        self._table = table
        self._left_out: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        module, table = self.__name__, self._table
        if name == "__all__":
            return [each for each in self.__dir__() if not each.startswith("_")]
        entry = table.get(module, name)
        if entry is not None and entry.ours is not None:
            value = entry.load()
            if entry.ours.startswith("recsys.jagged."):
                # As TorchRec's, they can stand in what torch.jit.script compiles.
                from recsys.scripting.scripted import know_types

                know_types()
            self.__dict__[name] = value
            return value
        if entry is None and table.is_module(f"{module}.{name}"):
            return __import__(f"{module}.{name}", fromlist=["__name__"])
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if not table.is_left_out(module, name) or not reads_attribute(1) or handles_import_errors(1):
            raise AttributeError(table.missing(module, name))
        return self._left_out.setdefault(name, left_out(module, name, table.missing(module, name)))

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:  # noqa: ARG002
        """Raise: a function that is left out with all others of its module was taken for a module."""
        package, _, name = self.__name__.rpartition(".")
        raise LeftOutError(self._table.missing(package, name))

    def __setattr__(self, name: str, value: object) -> None:
        # After the import of a module the import system stores it in its package. In torchrec.optim the function
        # apply_optimizer_in_backward has its module's name, and comes first.
        if isinstance(value, _Module) and self._table.get(self.__name__, name) is not None:
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self._table.defined(self.__name__), *self._table.children(self.__name__)})


class _Finder(MetaPathFinder, Loader):
    """Finds and makes the modules."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module of TorchRec's; None for modules of others.

        Raises:
            ImportError: TorchRec's module or name is unknown, or left out and the code goes on without it.
        """
        if fullname != _ROOT and not fullname.startswith(f"{_ROOT}."):
            return None
        if not self._table.is_module(fullname):
            module, _, name = fullname.rpartition(".")
            missing = self._table.missing(module, name)
            # Not ModuleNotFoundError: "from module import name" would replace its message.
            if not self._table.is_left_out(module, name) or handles_import_errors(1):
                raise ImportError(missing, name=fullname)
            if not self._table.is_left_out_module(fullname):
                # "from module import name" then asks the module for it.
                raise ModuleNotFoundError(missing, name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module."""
        return _Module(spec.name, self._table)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are imported on first access."""


def install() -> None:
    """Answer all later imports of ``torchrec`` in this process with this library.

    Call it before the first ``import torchrec``. A second call does nothing.

    Raises:
        RuntimeError: TorchRec itself is imported already.
    """
    if _installed() is not None:
        return
    genuine = sys.modules.get(_ROOT)
    if genuine is not None and not isinstance(genuine, _Module):
        raise RuntimeError(
            f"TorchRec itself is imported already, from {getattr(genuine, '__file__', 'an unknown place')}: "
            "call recsys.as_torchrec.install() before the first import of torchrec"
        )
    sys.meta_path.insert(0, _Finder(load_table()))


def uninstall() -> None:
    """Take the hook away, and forget the modules that it made. What was imported from them stays usable."""
    finder = _installed()
    if finder is not None:
        sys.meta_path.remove(finder)
    for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
        del sys.modules[name]


def _installed() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
