"""Read settings from flags, the environment and one TOML file; check them and keep their origins."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.base.cli import near_misses
from recsys.options.kinds import ConfigError
from recsys.options.toml import read_toml
from serve.config.models import ModelSettings
from serve.config.options import (
    ENV_PREFIX,
    Section,
    Setting,
    SettingPath,
    all_options,
    child_path,
    field_kinds,
    key_of,
    model_sections,
    sections,
)
from serve.config.settings import Settings

#: The environment variable for ``--config``.
CONFIG_ENVIRONMENT = ENV_PREFIX + "CONFIG"
_MODELS, _DEFAULTS, _ADMIN = "models", "defaults", "admin"
# Variables that Kubernetes sets in every container for a service whose name is or begins with recsys-serve.
_SERVICE_LINK = re.compile(
    r"_SERVICE_HOST|_SERVICE_PORT|_SERVICE_PORT_\w+|_PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Given:
    """A value and its origin.

    Attributes:
        value: the value, of the setting's type.
        origin: a flag, an environment name, or the file.
    """

    value: object
    origin: str


Values = Mapping[SettingPath, Given]


@dataclass(frozen=True, kw_only=True)
class Effective:
    """The effective settings.

    Attributes:
        settings: all settings, checked.
        given: the settings that were given explicitly; all others have their defaults.
        file: the file of settings; None for none.
    """

    settings: Settings
    given: Values
    file: Path | None = None

    def with_routing_file(self) -> Effective:
        """Return the same settings with a file beside ``file`` for the routing that operators set.

        They are unchanged if they have no admin service, say something about such a file, or the folder cannot be
        written to.
        """
        path = (_ADMIN, "routing_file")
        if self.file is None or self.settings.server.admin is None or path in self.given:
            return self
        if not os.access(self.file.absolute().parent, os.W_OK):
            return self
        beside = Given(self.file.absolute().with_suffix(".routing.json"), f"beside {self.file.name}")
        given = {**self.given, path: beside}
        return Effective(settings=_build(Settings, (), given), given=given, file=self.file)

    def rows(self) -> list[tuple[str, object, str]]:
        """Return each effective setting: its key, its value, its origin.

        For single models only the settings that were given explicitly and differ from ``defaults``.
        """
        rows = [
            (option.key, value, self.given[option.path].origin if option.path in self.given else "default")
            for option in all_options(sections())
            for value in _values_at(self.settings, option.path)
        ]
        of_models = sorted(path for path in self.given if path[0] == _MODELS and len(path) > 2)
        return rows + [(key_of(path), self.given[path].value, self.given[path].origin) for path in of_models]


def effective(flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Effective:
    """Merge the sources. Flags override the environment, the environment the file, the file the defaults.

    Args:
        flags: the values of given flags, by key of the setting.
        environment: the process's variables.
        file: the TOML file; None for the one that the environment names, if any.

    Raises:
        ConfigError: a source cannot be used.
    """
    named = environment.get(CONFIG_ENVIRONMENT)
    if file is None and named:
        file = Path(named)
    given: dict[SettingPath, Given] = {}
    if file is not None:
        given.update(read_file(file))
    given.update(_read_environment(environment))
    given.update(_read_flags(flags))
    return Effective(settings=_build(Settings, (), given), given=given, file=file)


def read_file(path: Path) -> Values:
    """Read the settings of a TOML file. Its paths are relative to its folder.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    data = read_toml(path)
    given: dict[SettingPath, Given] = {}
    models = data.pop(_MODELS, {})
    _read_table(_Table(path, sections()), (), data, given)
    if not isinstance(models, dict):
        raise ConfigError(f"{path}: {_MODELS}: got {str(models)[:80]!r}, expected tables [{_MODELS}.NAME]")
    for name, table in models.items():
        _read_table(_Table(path, model_sections(name)), (_MODELS, name), table, given)
        given[_MODELS, name] = Given(None, str(path))  # an empty table also names a model
    return given


class _Table:
    """The keys that the tables of a file may have."""

    def __init__(self, file: Path, known: Iterable[Section]) -> None:
        self.file = file
        known = tuple(known)
        self.options = {option.path: option for option in all_options(known)}
        self.tables = {section.path[:i] for section in known for i in range(len(section.path) + 1)}

    def unknown(self, path: SettingPath) -> ConfigError:
        names = [p[-1] for p in [*self.options, *self.tables] if p[:-1] == path[:-1] and p]
        hint = near_misses(path[-1], names)
        elsewhere = [key_of(p) for p in self.options if p[-1] == path[-1]]
        if not hint and elsewhere:
            hint = f"; did you mean {' or '.join(elsewhere)}?"
        return ConfigError(
            f"{self.file}: {key_of(path)}: unknown key, expected one of {', '.join(sorted(names))}{hint}"
        )


def _read_table(table: _Table, path: SettingPath, data: object, given: dict[SettingPath, Given]) -> None:
    if not isinstance(data, dict):
        raise ConfigError(f"{table.file}: {key_of(path)}: got {str(data)[:80]!r}, expected a table")
    for name, value in data.items():
        at = (*path, name)
        if at in table.tables:
            _read_table(table, at, value, given)
        elif at in table.options:
            given[at] = Given(_checked(table.file, table.options[at], value), str(table.file))
        else:
            raise table.unknown(at)


def _checked(file: Path, option: Setting, value: object) -> object:
    try:
        checked = option.from_file(value)
    except ConfigError as error:
        raise ConfigError(f"{file}: {option.key}: {error}") from None
    return file.absolute().parent / checked if isinstance(checked, Path) else checked


def _read_environment(environment: Mapping[str, str]) -> Values:
    known = {option.environment: option for option in all_options(sections())}
    given: dict[SettingPath, Given] = {}
    for name, text in environment.items():
        if not name.startswith(ENV_PREFIX) or name == CONFIG_ENVIRONMENT or _is_service_link(name, text):
            continue
        if name not in known:
            raise ConfigError(f"{name}: unknown environment name{near_misses(name, known)}")
        given[known[name].path] = _from_text(known[name], name, text)
    return given


def _is_service_link(name: str, text: str) -> bool:
    return bool(
        _SERVICE_LINK.search(name.removeprefix(ENV_PREFIX[:-1]))
        or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text))
    )


def parse_flags(texts: Mapping[str, str]) -> dict[str, object]:
    """Return the values of flags for ``effective``, by key of the setting.

    Raises:
        ConfigError: a text is not a value of its setting.
    """
    known = {option.key: option for option in all_options(sections())}
    return {key: _from_text(known[key], known[key].name, text).value for key, text in texts.items()}


def _read_flags(flags: Mapping[str, object]) -> Values:
    known = {option.key: option for option in all_options(sections())}
    return {known[key].path: Given(value, known[key].name) for key, value in flags.items()}


def _from_text(option: Setting, origin: str, text: str) -> Given:
    try:
        return Given(option.from_text(text), origin)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {option.key}: {error}") from None


def _build(kind: type, path: SettingPath, given: Values) -> Any:
    """Build the dataclass at ``path``."""
    values: dict[str, Any] = {}
    kinds = field_kinds(kind)
    for field in dataclasses.fields(kind):
        of, may_be_none = kinds[field.name]
        at = child_path(path, field.name)
        if typing.get_origin(of) is Mapping:
            names = sorted({p[1] for p in given if p[0] == _MODELS})
            values[field.name] = {name: _build_model(name, given) for name in names}
        elif isinstance(of, type) and dataclasses.is_dataclass(of):
            if not may_be_none or any(p[: len(at)] == at for p in given):
                values[field.name] = _build(of, at, given)
        elif at in given:
            values[field.name] = given[at].value
        elif field.default is dataclasses.MISSING:
            raise _missing(at, path, given)
    try:
        return kind(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise _out_of_range(kind, path, given, str(error)) from None


def _build_model(name: str, given: Values) -> ModelSettings:
    """Build a model's settings; ``defaults`` supplies what its own table leaves out."""
    inherited = {(_MODELS, name, *path[1:]): value for path, value in given.items() if path[0] == _DEFAULTS}
    made: ModelSettings = _build(ModelSettings, (_MODELS, name), {**inherited, **given})
    return made


def _missing(at: SettingPath, path: SettingPath, given: Values) -> ConfigError:
    beside = next(value.origin for p, value in given.items() if p[: len(path)] == path)
    return ConfigError(
        f"{beside}: {key_of(at)}: missing, expected it beside the other settings of {key_of(path)}"
    )


def _out_of_range(kind: type, path: SettingPath, given: Values, text: str) -> ConfigError:
    """Return a dataclass's error with the origin in front; its text begins with the field."""
    name = text.partition(":")[0]
    is_field = name in {field.name for field in dataclasses.fields(kind)}
    key = ".".join([*path, text]) if is_field else f"{key_of(path)}: {text}".removeprefix(": ")
    # A setting may be invalid only in combination with another of its table, which was given then.
    origins = [given[p].origin for p in [(*path, name), *given] if p in given and p[:-1] == path]
    return ConfigError(f"{origins[0]}: {key}" if origins else key)


def _values_at(settings: Settings, path: SettingPath) -> list[object]:
    """Return the value at a path, if there is one."""
    value: Any = settings if path[0] in ("source", "process") else settings.server
    for name in path:
        if value is None:
            return []
        value = getattr(value, name)
    return [value]
