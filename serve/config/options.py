"""Names and values of all settings: flags, environment variables and file keys are derived from settings.py.

A setting has a path, such as ``defaults.limits.max_batch_rows``: the names of the dataclasses' fields that lead to it.
The path is its key in the file. In capitals, joined by underscores, after ``RECSYS_SERVE_``, it is the
environment variable. With dashes, without redundant sections and without ``num_``, it is the flag:
``--max-batch-rows``.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.options.kinds import (
    ADDRESS,
    INTEGER,
    NAMES,
    NUMBER,
    PATH,
    RANGES,
    SIZE,
    SWITCH,
    TEXT,
    ConfigError,
    Kind,
)
from recsys.options.table import Option, Shortcut
from serve.config.models import ModelSettings
from serve.config.settings import Settings

ENV_PREFIX = "RECSYS_SERVE_"
#: The one positional setting of the command line.
POSITIONAL = ("source", "artifact")
#: The value that switches off an optional setting, such as a port.
NONE = "none"
# Sections that flags leave out, because the names of their settings are clear without them.
_SILENT_SECTIONS = frozenset({"source", "process", "defaults", "limits", "connections"})
# The field whose settings are at the top level of the file.
_TOP = "server"
_SHORTCUTS: Mapping[tuple[str, ...], tuple[Shortcut, ...]] = {
    ("process", "engine"): (Shortcut("--native", "native", "--engine native"),),
    ("metrics_port",): (Shortcut("--no-metrics", None, "serve no metrics"),),
}
_KINDS: dict[object, Kind] = {
    int: INTEGER,
    float: NUMBER,
    bool: SWITCH,
    str: TEXT,
    Path: dataclasses.replace(PATH, metavar="PATH"),
    Path | str: ADDRESS,
    tuple[int, ...]: RANGES,
    tuple[str, ...]: NAMES,
}

SettingPath = tuple[str, ...]


@dataclass(frozen=True)
class Setting(Option):
    """One setting of recsys-serve: an option whose key has tables, which the environment can give too.

    Attributes:
        path: the fields that lead to it, from the top level of the file.
        is_optional: whether ``none`` is a value.
    """

    path: SettingPath = ()
    is_optional: bool = False

    @property
    def key(self) -> str:
        """The key in the file, with its tables."""
        return key_of(self.path)

    def from_text(self, text: str) -> Any:
        """Parse the value of a flag or an environment variable.

        Raises:
            ConfigError: the text is not such a value; the message says what was got and expected.
        """
        return self._some(text, self.kind.from_text)

    def help_text(self) -> str:
        """See ``Option``."""
        return super().help_text().replace("None", NONE).replace("``", "")

    def default_text(self) -> str:
        """See ``Option``; here ``none`` and ``false`` are shown too."""
        if self.default is dataclasses.MISSING or self.default in ("", ()):
            return ""
        return str(self.default).lower() if self.kind is SWITCH else str(self.default)

    def from_file(self, value: object) -> Any:
        """Convert the value of a key of the file.

        Raises:
            ConfigError: the type is wrong; the message says what was got and expected.
        """
        return self._some(value, self.kind.from_file)

    def _some(self, value: Any, convert: Callable[[Any], Any]) -> Any:
        if self.is_optional and isinstance(value, str) and value.lower() == NONE:
            return None
        try:
            return convert(value)
        except ConfigError as error:
            raise ConfigError(f"{error} or {NONE}" if self.is_optional else str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Section:
    """Settings of one table of the file.

    Attributes:
        path: the table; empty for the top level.
        about: the first line of its dataclass's docstring.
        options: its settings, without those of nested tables.
        is_optional: whether the feature is off if none of its settings is given.
    """

    path: SettingPath
    about: str
    options: tuple[Setting, ...]
    is_optional: bool


def key_of(path: SettingPath) -> str:
    """Return a path as a key of the file."""
    return ".".join(path)


def sections() -> tuple[Section, ...]:
    """Return the sections of all settings except those of single models."""
    return tuple(_sections(Settings, (), is_optional=False))


def model_sections(model: str) -> tuple[Section, ...]:
    """Return the sections of one model's settings."""
    return tuple(_sections(ModelSettings, ("models", model), is_optional=False))


def all_options(of: Iterable[Section]) -> tuple[Setting, ...]:
    """Return the settings of sections, in order."""
    return tuple(option for section in of for option in section.options)


def field_kinds(kind: type) -> Mapping[str, tuple[object, bool]]:
    """Return the type of each field of a dataclass, without None, and whether the field may be None.

    A field that may be a path or an address has the type ``Path | str``.
    """
    kinds: dict[str, tuple[object, bool]] = {}
    for name, hint in typing.get_type_hints(kind).items():
        arguments = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        some = [argument for argument in arguments if argument is not type(None)]
        kinds[name] = (Path | str if len(some) > 1 else some[0], len(some) < len(arguments))
    return kinds


def child_path(path: SettingPath, name: str) -> SettingPath:
    """Return the path of a field of the dataclass at ``path``."""
    return path if name == _TOP else (*path, name)


def _sections(kind: type, path: SettingPath, *, is_optional: bool) -> Iterator[Section]:
    kinds, about = field_kinds(kind), descriptions(kind)
    options: list[Setting] = []
    inner: list[Section] = []
    for field in dataclasses.fields(kind):
        of, may_be_none = kinds[field.name]
        if isinstance(of, type) and dataclasses.is_dataclass(of):
            inner.extend(_sections(of, child_path(path, field.name), is_optional=may_be_none))
        elif typing.get_origin(of) is not Mapping:  # a Mapping is the table of single models
            options.append(
                _setting((*path, field.name), of, about.get(field.name, ""), field.default, may_be_none)
            )
    title = (inspect.getdoc(kind) or "").partition("\n")[0]
    if options:
        yield Section(path=path, about=title, options=tuple(options), is_optional=is_optional)
    yield from inner


def _setting(path: SettingPath, kind: object, about: str, default: object, is_optional: bool) -> Setting:
    name = path[-1]
    parts = [*(part for part in path[:-1] if part not in _SILENT_SECTIONS), name.removeprefix("num_")]
    return Setting(
        name="ARTIFACT" if path == POSITIONAL else "--" + "-".join(parts).replace("_", "-"),
        kind=SIZE if kind is int and name.endswith("_bytes") else _KINDS[kind],
        about=about,
        default=default,
        negatable=True,
        shortcuts=_SHORTCUTS.get(path, ()),
        environment=ENV_PREFIX + "_".join(path).upper(),
        path=path,
        is_optional=is_optional,
    )


def descriptions(kind: type) -> dict[str, str]:
    """Return the description of each attribute in a dataclass's docstring."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", words).rstrip(".") for name, words in found}
