"""Names and values of all settings: flags, environment variables and file keys are derived from settings.py.

A setting has a path, such as ``defaults.limits.max_batch_rows``: the names of the dataclasses' fields that lead to it.
The path is its key in the file. In capitals, joined by underscores, after ``RECSYS_SERVE_``, it is the
environment variable. With dashes, without redundant sections and without ``num_``, it is the flag:
``--max-batch-rows``.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recsys.base.cli import size
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
# Higher than any processor's number; keeps a range such as 0-999999999 from being expanded.
_MAX_CPU = 65535
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}

SettingPath = tuple[str, ...]


class ConfigError(ValueError):
    """A setting cannot be used; the message names its origin, its key, its value and what is expected."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting.

    Attributes:
        path: the fields that lead to it, from the top level of the file.
        kind: its type; for an optional setting the type other than None.
        is_optional: whether ``none`` is a value.
        default: the default value; ``dataclasses.MISSING`` if there is none.
        about: its description, from the docstring of its dataclass.
    """

    path: SettingPath
    kind: object
    is_optional: bool
    default: object
    about: str

    @property
    def key(self) -> str:
        """The key in the file, with its tables."""
        return key_of(self.path)

    @property
    def environment(self) -> str:
        """The name of the environment variable."""
        return ENV_PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        """The flag, or the help text's name for the positional argument."""
        if self.path == POSITIONAL:
            return self.path[-1].upper()
        parts = [part for part in self.path[:-1] if part not in _SILENT_SECTIONS]
        return "--" + "-".join([*parts, self.path[-1].removeprefix("num_")]).replace("_", "-")

    def from_text(self, text: str) -> object:
        """Parse the value of a flag or an environment variable.

        Raises:
            ConfigError: the text is not such a value; the message says what was got and expected.
        """
        if self.is_optional and text.lower() == NONE:
            return None
        try:
            return _from_text(self, text)
        except (ValueError, argparse.ArgumentTypeError):
            raise ConfigError(f"got {text[:80]!r}, expected {self.expected()}") from None

    def from_file(self, value: object) -> object:
        """Convert the value of a key of the file.

        Raises:
            ConfigError: the type is wrong; the message says what was got and expected.
        """
        if self.is_optional and value == NONE:
            return None
        checked = _from_file(self, value)
        if checked is None:
            raise ConfigError(f"got {str(value)[:80]!r}, expected {self.expected()}")
        return checked

    def expected(self) -> str:
        """Return a description of the accepted values."""
        words = {
            int: "a size such as 4194304 or 4MiB" if self.path[-1].endswith("_bytes") else "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a text",
            Path: "a path",
            tuple[int, ...]: "numbers such as 0-3,5",
            tuple[str, ...]: "names with commas between",
        }[self.kind]  # type: ignore[index]
        return f"{words} or {NONE}" if self.is_optional else words


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
    options: tuple[Option, ...]
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


def all_options(of: Iterable[Section]) -> tuple[Option, ...]:
    """Return the settings of sections, in order."""
    return tuple(option for section in of for option in section.options)


def field_kinds(kind: type) -> Mapping[str, tuple[object, bool]]:
    """Return the type of each field of a dataclass, without None, and whether the field may be None."""
    kinds: dict[str, tuple[object, bool]] = {}
    for name, hint in typing.get_type_hints(kind).items():
        arguments = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        some = [argument for argument in arguments if argument is not type(None)]
        kinds[name] = (some[0], len(some) < len(arguments))
    return kinds


def child_path(path: SettingPath, name: str) -> SettingPath:
    """Return the path of a field of the dataclass at ``path``."""
    return path if name == _TOP else (*path, name)


def _sections(kind: type, path: SettingPath, *, is_optional: bool) -> Iterator[Section]:
    kinds, about = field_kinds(kind), _about(kind)
    options: list[Option] = []
    inner: list[Section] = []
    for field in dataclasses.fields(kind):
        of, may_be_none = kinds[field.name]
        if isinstance(of, type) and dataclasses.is_dataclass(of):
            inner.extend(_sections(of, child_path(path, field.name), is_optional=may_be_none))
        elif typing.get_origin(of) is not Mapping:  # a Mapping is the table of single models
            made = Option(
                path=(*path, field.name),
                kind=of,
                is_optional=may_be_none,
                default=field.default,
                about=about.get(field.name, ""),
            )
            options.append(made)
    title = (inspect.getdoc(kind) or "").partition("\n")[0]
    if options:
        yield Section(path=path, about=title, options=tuple(options), is_optional=is_optional)
    yield from inner


def _about(kind: type) -> dict[str, str]:
    """Return the description of each attribute in a dataclass's docstring."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", words).rstrip(".") for name, words in found}


def _from_text(option: Option, text: str) -> object:
    kind = option.kind
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError
        return _WORDS[text.lower()]
    if kind is int:
        if option.path[-1].endswith("_bytes"):
            return size(text)
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError
        return int(text)
    if kind is float:
        return float(text)
    if kind == tuple[int, ...]:
        return _numbers(text)
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(","))
    if kind is Path and not text:
        raise ValueError
    return Path(text) if kind is Path else text


def _from_file(option: Option, value: object) -> object | None:
    """Return the value, or None if its type is wrong."""
    kind = option.kind
    if isinstance(value, str) and (
        kind in (str, Path, tuple[int, ...]) or (kind is int and option.path[-1].endswith("_bytes"))
    ):
        return option.from_text(value)
    if kind is float and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if kind in (int, bool) and type(value) is kind:
        return value
    item = {tuple[int, ...]: int, tuple[str, ...]: str}.get(kind)  # type: ignore[call-overload]
    if item is not None and isinstance(value, list) and all(type(v) is item for v in value):
        return tuple(value)
    return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a text such as ``0-3,5``, each once, in ascending order."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if match is None:
            raise ValueError
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= _MAX_CPU:
            raise ValueError
        found.update(range(first, last + 1))
    return tuple(sorted(found))
