"""The table of TorchRec's names, read from ``names/*.toml``, and of those that its modules hand on from each other."""

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

from recsys.base.cli import near_misses

#: The release of TorchRec whose names these are.
TORCHREC_VERSION = "1.8.0"
#: In place of a name: all other names of a module, and the modules below it.
ALL_OTHERS = "*"
_FOLDER = Path(__file__).parent / "names"
_HANDED_ON = Path(__file__).parent / "handed_on.toml"
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
        modules: From TorchRec's import paths to the names that are listed; with every package on the way to a module.
        handed_on: From TorchRec's import paths to names that it imports from others of its modules, and those modules.
    """

    modules: Mapping[str, Mapping[str, Name]]
    handed_on: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[Name]:
        for names in self.modules.values():
            yield from names.values()

    def get(self, module: str, name: str) -> Name | None:
        """Return the entry of a name that a module defines or hands on; None if there is none."""
        found = self.modules.get(module, {}).get(name)
        if found is not None:
            return found
        home = self.handed_on.get(module, {}).get(name, "")
        return self.modules.get(home, {}).get(name) or (self.others(home) if home else None)

    def find(self, module: str, name: str) -> Name | None:
        """Return the entry of a name, or the one that speaks for all others of its module; None if there is neither."""
        return self.get(module, name) or self.others(module)

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
        names = self.modules.get(path)
        if names is None or names.keys() == {ALL_OTHERS}:
            return bool(self.children(path))
        return bool(names) or bool(self.defined(path)) or bool(self.children(path))

    def is_left_out(self, module: str, name: str) -> bool:
        """Return whether a name is known to be left out; private names of known modules are."""
        entry = self.modules.get(f"{module}.{name}", {}).get(ALL_OTHERS) or self.find(module, name)
        if entry is not None:
            return entry.ours is None
        return name.startswith("_") and bool(self.defined(module) or self.children(module))

    def is_left_out_module(self, path: str) -> bool:
        """Return whether a path may be a module that is left out as a whole: classes begin with a capital letter."""
        module, _, name = path.rpartition(".")
        return self.get(module, name) is None and self.others(path) is not None and name[:1].islower()

    def defined(self, module: str) -> list[str]:
        """Return the names that can be imported from a module."""
        names = dict.fromkeys([*self.modules.get(module, {}), *self.handed_on.get(module, {})])
        entries = ((name, self.get(module, name)) for name in names)
        return [name for name, entry in entries if entry is not None and entry.ours is not None]

    def children(self, module: str) -> list[str]:
        """Return the last parts of the modules in a package."""
        prefix = f"{module}."
        below = [path for path in self.modules if path.startswith(prefix) and "." not in path[len(prefix) :]]
        return [path[len(prefix) :] for path in below if self.is_module(path)]

    def names_of(self, ours: type[Any]) -> list[Name]:
        """Return the names of TorchRec's that a class of ours stands for."""
        return self._by_ours.get(f"{ours.__module__}:{ours.__qualname__}", [])

    @functools.cached_property
    def _by_ours(self) -> dict[str, list[Name]]:
        found: dict[str, list[Name]] = {}
        for name in self:
            found.setdefault(name.ours or "", []).append(name)
        return found

    def missing(self, module: str, name: str) -> str:
        """Return what to say of a name that is not defined.

        Args:
            module: The module that was asked; it may be unknown itself.
            name: The name in it.
        """
        entry = self.modules.get(f"{module}.{name}", {}).get(ALL_OTHERS) or self.find(module, name)
        if entry is not None:
            if entry.name != ALL_OTHERS:
                return f"{entry.path} is left out here: {entry.left_out}"
            near = near_misses(name, [*self.defined(module), *self.children(module)])
            return f"{module}.{name} is left out here: {entry.left_out}{near}"
        known = [*self.defined(module), *self.children(module)]
        if not known:
            return f"{module} is no module of TorchRec's that is known here" + near_misses(
                module, self.modules
            )
        if name.startswith("_"):
            return f"{module}.{name} is private to TorchRec; public names alone are known here"
        elsewhere = sorted(entry.module for entry in self if entry.name == name and entry.ours is not None)
        if elsewhere:
            return f"{module} has no {name}; it is in {' and '.join(elsewhere)}"
        return f"{module} has no {name} that is known here" + near_misses(name, known)


@functools.cache
def load_table() -> Table:
    """Return the table that is part of this package."""
    return read_table(_FOLDER, _HANDED_ON)


def read_table(folder: Path, handed_on: Path | None = None) -> Table:
    """Read a table.

    Args:
        folder: Its files, one per area.
        handed_on: The file of the names that modules hand on: for each module others, and the names from each.

    Raises:
        ValueError: A file is not valid, or two files define a name as different things. What is left out in one file
            and defined in another is defined.
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
                if entry.ours is not None and other.ours is None:
                    modules[module][name] = entry
                elif entry.ours is not None and entry.ours != other.ours:
                    raise ValueError(f"{file.name}: {entry.path} contradicts {other.area}.toml")
    return Table(modules, {} if handed_on is None else _read_handed_on(handed_on, modules))


def _read_handed_on(file: Path, modules: dict[str, dict[str, Name]]) -> dict[str, dict[str, str]]:
    with file.open("rb") as stream:
        document: dict[str, dict[str, str]] = tomllib.load(stream)
    for module in document:
        for above in _with_packages(module):
            modules.setdefault(above, {})
    return {
        module: {name: home for home, names in homes.items() for name in names.split()}
        for module, homes in document.items()
    }


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
