"""The table of TorchRec's names, read from ``names/*.toml``."""

from __future__ import annotations

import functools
import importlib
import operator
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recsys.cli import near_misses

#: The release of TorchRec whose names these are.
TORCHREC_VERSION = "1.8.0"
#: In place of a name: all other names of a module, and the modules below it.
ALL_OTHERS = "*"
_FOLDER = Path(__file__).parent / "names"
_PATH = re.compile(r"torchrec(\.\w+)*")
_TARGET = re.compile(r"[\w.]+:[\w.]+")
_KEYS = {"ours", "left_out", "signature", "without"}


@dataclass(frozen=True)
class Name:
    """One of TorchRec's names.

    Attributes:
        module: TorchRec's import path, such as ``torchrec.sparse.jagged_tensor``.
        name: The name in it, or ``*`` for all that the table does not list.
        ours: Where it is defined, as ``module:attribute``; None if it is left out.
        left_out: Why it is left out; None if it is defined.
        signature: Why the signature is not TorchRec's; None if it is.
        without: Of a class, the methods that are left out, and why.
        area: The file of the table, without its suffix.
    """

    module: str
    name: str
    ours: str | None
    left_out: str | None = None
    signature: str | None = None
    without: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    area: str = ""

    @property
    def path(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}"

    def load(self) -> Any:
        """Import what the name stands for.

        Raises:
            AttributeError: It is left out; the message says why.
        """
        if self.ours is None:
            raise AttributeError(f"{self.path} is left out here: {self.left_out}")
        module, _, attribute = self.ours.partition(":")
        return operator.attrgetter(attribute)(importlib.import_module(module))


@dataclass(frozen=True)
class Table:
    """All names, by module.

    Attributes:
        modules: From TorchRec's import paths to the names in each; with every package on the way to a module.
    """

    modules: Mapping[str, Mapping[str, Name]]

    def __iter__(self) -> Iterator[Name]:
        for names in self.modules.values():
            yield from names.values()

    def find(self, module: str, name: str) -> Name | None:
        """Return the entry of a name, or the one that speaks for all others of its module; None if there is neither."""
        found = self.modules.get(module, {}).get(name)
        return found or self.others(module)

    def others(self, module: str) -> Name | None:
        """Return why names that a module or a package above it does not list are left out; None if it does not say."""
        while module:
            found = self.modules.get(module, {}).get(ALL_OTHERS)
            if found is not None:
                return found
            module = module.rpartition(".")[0]
        return None

    def is_module(self, path: str) -> bool:
        """Return whether a path is a module whose names are listed, or a package of such modules."""
        return bool(self.modules.get(path, {}).keys() - {ALL_OTHERS}) or bool(self.children(path))

    def defined(self, module: str) -> list[str]:
        """Return the names that a module defines."""
        return [name for name, entry in self.modules.get(module, {}).items() if entry.ours is not None]

    def children(self, module: str) -> list[str]:
        """Return the last parts of the modules in a package."""
        prefix = f"{module}."
        below = [path for path in self.modules if path.startswith(prefix) and "." not in path[len(prefix) :]]
        return [path[len(prefix) :] for path in below if self.is_module(path)]

    def missing(self, module: str, name: str) -> str:
        """Return what to say of a name that is not defined.

        Args:
            module: The module that was asked; it may be unknown itself.
            name: The name in it.
        """
        entry = self.modules.get(f"{module}.{name}", {}).get(ALL_OTHERS) or self.find(module, name)
        if entry is not None:
            return f"{module}.{name} is left out here: {entry.left_out}"
        known = [*self.defined(module), *self.children(module)]
        if not known:
            return f"{module} is no module of TorchRec's that is known here" + near_misses(
                module, self.modules
            )
        elsewhere = sorted(path for path in self.modules if name in self.defined(path))
        if elsewhere:
            return f"{module} has no {name}; it is in {' and '.join(elsewhere)}"
        return f"{module} has no {name} that is known here" + near_misses(name, known)


@functools.cache
def load_table() -> Table:
    """Return the table that is part of this package."""
    return read_table(_FOLDER)


def read_table(folder: Path) -> Table:
    """Read a table.

    Args:
        folder: Its files, one per area.

    Raises:
        ValueError: A file is not as described in docs/torchrec.md, or two files contradict each other.
    """
    modules: dict[str, dict[str, Name]] = {}
    for file in sorted(folder.glob("*.toml")):
        with file.open("rb") as stream:
            document = tomllib.load(stream)
        for module, names in document.items():
            if not _PATH.fullmatch(module) or not isinstance(names, dict):
                raise ValueError(f'{file.name}: got {module}, expected a table ["torchrec.…"]')
            for above in _with_packages(module):
                modules.setdefault(above, {})
            for name, value in names.items():
                entry = _entry(file.stem, module, name, value)
                other = modules[module].setdefault(name, entry)
                if (other.ours, other.left_out) != (entry.ours, entry.left_out):
                    raise ValueError(f"{file.name}: {entry.path} contradicts {other.area}.toml")
    return Table(modules)


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _entry(area: str, module: str, name: str, value: object) -> Name:
    where = f"{area}.toml: {module}.{name}"
    fields = {"ours": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not fields.keys() <= _KEYS:
        raise ValueError(f'{where}: got {value!r}, expected "module:name" or a table of {sorted(_KEYS)}')
    if ("ours" in fields) == ("left_out" in fields):
        raise ValueError(f"{where}: got {sorted(fields)}, expected either ours or left_out")
    ours = fields.get("ours")
    if ours is not None and (not isinstance(ours, str) or not _TARGET.fullmatch(ours) or name == ALL_OTHERS):
        raise ValueError(f'{where}: got {ours!r}, expected "module:name" for one name')
    without = fields.get("without", {})
    texts = [fields[key] for key in ("left_out", "signature") if key in fields]
    if not isinstance(without, dict) or not all(
        isinstance(t, str) and t for t in (*texts, *without.values())
    ):
        raise ValueError(f"{where}: got {value!r}, expected reasons as text")
    return Name(
        module=module,
        name=name,
        ours=ours,
        left_out=fields.get("left_out"),
        signature=fields.get("signature"),
        without=MappingProxyType(without),
        area=area,
    )
