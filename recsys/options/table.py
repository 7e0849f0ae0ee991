"""The table of a command's options: flags, keys in TOML, defaults, help and errors are made from it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from recsys.base.cli import Parser, VersionAction, add_program_options, near_misses
from recsys.options.kinds import ADDRESS, COUNT, PATH, SWITCH, ConfigError, Kind
from recsys.options.sections import own_part, without_sections
from recsys.options.toml import read_toml

_HIDDEN = argparse.SUPPRESS


@dataclass(frozen=True)
class Shortcut:
    """A flag that gives an option one value, such as ``--native`` for ``--engine native``.

    Attributes:
        name: The flag.
        value: What it gives.
        about: What it is, for the help.
    """

    name: str
    value: Any
    about: str


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        name: The flag, such as ``--batch-size``, or the name of a positional argument.
        kind: The kind of its values.
        about: What it is, for the help.
        default: Its value where it is not given; shown in the help unless None, False or empty.
        metavar: The name of a value in the help; empty for the kind's.
        required: Whether it must be given.
        repeated: Whether it may be given several times; its value is then a list.
        negatable: Whether a switch has a flag ``--no-NAME`` too.
        old: Earlier flags, which still work; a line on stderr names the new one.
        shortcuts: Flags that give it one value; at most one of them and its own may be given.
        dest: The attribute of the parsed options; empty for the key.
        environment: A variable of the environment that gives it too.
        shows_version: Whether the flag without a value prints the version of the program.
    """

    name: str
    kind: Kind
    about: str
    _: KW_ONLY
    default: Any = None
    metavar: str = ""
    required: bool = False
    repeated: bool = False
    negatable: bool = False
    old: tuple[str, ...] = ()
    shortcuts: tuple[Shortcut, ...] = ()
    dest: str = ""
    environment: str = ""
    shows_version: bool = False

    @property
    def key(self) -> str:
        """The key in TOML."""
        return key_of(self.name)

    @property
    def attribute(self) -> str:
        """The attribute of the parsed options."""
        return self.dest or self.key

    @property
    def is_positional(self) -> bool:
        """Whether it is an argument without a flag."""
        return not self.name.startswith("--")

    @property
    def shown(self) -> str:
        """Its name in errors and in the help."""
        return (self.metavar or self.name.upper()) if self.is_positional else self.name

    def from_text(self, text: str) -> Any:
        """Parse the value of a flag or of the environment.

        Raises:
            ConfigError: The text is none of this option.
        """
        return self.kind.from_text(text)

    def from_file(self, value: object) -> Any:
        """Convert the value of a key in TOML.

        Raises:
            ConfigError: The value is none of this option.
        """
        if not self.repeated:
            return self.kind.from_file(value)
        return [self.kind.from_file(item) for item in (value if isinstance(value, list) else [value])]

    def unset(self) -> Any:
        """Return the value where the option is not given."""
        if self.kind is SWITCH and self.default is None and not self.negatable:
            return False
        return list(self.default) if isinstance(self.default, list) else self.default

    def add_to(self, group: argparse._ActionsContainer, in_file: Collection[str] = ()) -> None:
        """Add the option's flags; only those that are given get a value.

        Args:
            group: A parser or a group of it.
            in_file: Keys that the file gives; positional arguments of these names may be left out.
        """
        is_optional = self.key in in_file or not self.required
        if self.shortcuts:
            group = group.add_mutually_exclusive_group()
        for name in (self.attribute if self.is_positional else self.name, *self.old):
            group.add_argument(name, **self._arguments(is_optional, is_old=name in self.old))
        for each in self.shortcuts:
            group.add_argument(
                each.name,
                dest=self.attribute,
                action="store_const",
                const=each.value,
                default=_HIDDEN,
                help=each.about,
            )

    def _arguments(self, is_optional: bool, *, is_old: bool) -> dict[str, Any]:
        shared: dict[str, Any] = {"default": _HIDDEN, "help": _HIDDEN if is_old else self.help_text()}
        if not self.is_positional:
            shared["dest"] = self.attribute
        if self.kind is SWITCH:
            return {**shared, "action": argparse.BooleanOptionalAction if self.negatable else "store_true"}
        shared["type"] = _Type(self)
        if self.kind.choices and not self.metavar and not self.is_positional:
            shared["choices"] = self.kind.choices
        else:
            shared["metavar"] = self.metavar or (self.shown if self.is_positional else self.kind.metavar)
        if self.is_positional and self.repeated:
            return {**shared, "nargs": "*" if is_optional else "+"}
        if self.is_positional:
            return {**shared, "nargs": "?"} if is_optional else shared
        if self.repeated:
            return {**shared, "action": "append"}
        return {**shared, "action": VersionAction, "nargs": "?"} if self.shows_version else shared

    def help_text(self) -> str:
        """Return what the help says of it, with its default."""
        default = self.default_text()
        return (f"{self.about} (default: {default})" if default else self.about).replace("%", "%%")

    def default_text(self) -> str:
        """Return its default for the help; empty for one that is not shown."""
        if self.default is None or self.default is False:
            return ""
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return (
            ",".join(map(str, self.default)) if isinstance(self.default, (list, tuple)) else str(self.default)
        )


@dataclass(frozen=True, eq=False)
class _Type:
    """What parses an option's value for argparse."""

    option: Option

    @property
    def is_path(self) -> bool:
        """Whether shells complete it with names of files."""
        return self.option.kind.parse in (PATH.parse, ADDRESS.parse)

    def __call__(self, text: str) -> Any:
        if text is _HIDDEN:
            return text  # argparse parses the default of a positional argument that is left out.
        try:
            return self.option.from_text(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class Group:
    """Options under one heading of the help.

    Attributes:
        title: The heading; empty for the first options.
        options: The options.
        one_of: Whether exactly one of them must be given.
        section: The name of a table in TOML that may have their keys; empty for none.
    """

    title: str
    options: tuple[Option, ...]
    _: KW_ONLY
    one_of: bool = False
    section: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its options.

    Attributes:
        program: Its name.
        about: What it does, in a sentence.
        epilog: Examples and exit codes, below the options in the help.
        groups: Its options.
        usage: The first line of the help; None for what argparse makes.
        commands: The commands that its first word chooses; they take its options too.
        others: First words that make another command of it, for errors and completions.
        summary: Its line in the help of the command that it is part of.
        has_program_options: Whether it has ``--version`` and ``--print-completion``.
        old_config: Earlier flags of ``--config``.
        section: The table with its options, in files that have those of other commands too; empty for none.
        documents: Tables in TOML that are no options; the parsed options have them by name in ``documents``.
    """

    program: str
    about: str
    epilog: str
    groups: tuple[Group, ...]
    usage: str | None = None
    commands: Mapping[str, Command] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    summary: str = ""
    has_program_options: bool = True
    old_config: tuple[str, ...] = ()
    section: str = ""
    documents: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """All options but those of its commands."""
        return tuple(option for group in self.groups for option in group.options)

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the options of a command line, of the environment and of ``--config``; ``given`` names those.

        Errors end the process with status 2.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        file = self._file_of(words)
        try:
            in_file, documents = ({}, {}) if file is None else self._read(file)
        except ConfigError as error:
            self.parser().refuse(str(error))
        parser = self.parser(in_file)
        parsed = parser.parse_args(words)
        if parsed.config != file:
            parser.error("--config: got an abbreviation, expected the whole flag")
        chosen = self.commands.get(getattr(parsed, "command", ""))
        groups = self.groups if chosen is None else (*self.groups, *chosen.groups)
        options = [option for group in groups for option in group.options]
        try:
            given = _given_elsewhere(options, file, in_file)
        except ConfigError as error:
            parser.refuse(str(error))
        current = {old: option.name for option in options for old in option.old}
        _name_old(self.program, words, {**current, **dict.fromkeys(self.old_config, "--config")})
        _name_old(self.program, in_file, {key_of(old): key_of(new) for old, new in current.items()})
        given |= {name: value for name, value in vars(parsed).items() if name not in ("command", "config")}
        for option in options:
            setattr(parsed, option.attribute, given.get(option.attribute, option.unset()))
        parsed.given, parsed.documents = frozenset(given), documents
        missing = [option for option in options if option.required and option.attribute not in given]
        if missing:
            parser.error(f"{_shown(missing)}: missing, expected {'it' if len(missing) == 1 else 'them'}")
        for group in groups:
            _check_one_of(group, given, parser)
        return parsed

    def read(self, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of a file by attribute, and its documents.

        Raises:
            ConfigError: The file is not readable, or has an unknown key or a wrong value.
        """
        in_file, documents = self._read(file)
        return _given_elsewhere(self.options, file, in_file), documents

    def _read(self, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        sections = {
            group.section: [key for option in group.options for key in (option.key, *map(key_of, option.old))]
            for group in self.groups
            if group.section
        }
        return without_sections(file, own_part(read_toml(file), self.section), sections, self.documents)

    def _file_of(self, words: Sequence[str]) -> Path | None:
        """Return the file of ``--config``, which says what else must be given; None where that is wrong."""
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        self._add_config(first, default=None)
        try:
            found: Path | None = first.parse_known_args(words)[0].config
        except argparse.ArgumentError:
            return None
        return found

    def parser(self, in_file: Collection[str] = ()) -> Parser:
        """Return the parser of the words, without the defaults.

        Args:
            in_file: Keys that the file gives.
        """
        top = self._fill(
            Parser(
                prog=self.program,
                usage=self.usage or self._usage(),
                description=self.about,
                epilog=self.epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            ),
            in_file,
        )
        top.commands = self.others
        if self.commands:
            prog = f"{self.program} ADDRESS" if any(o.is_positional for o in self.options) else self.program
            parts = top.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=prog)
            for name, command in self.commands.items():
                part = parts.add_parser(
                    name,
                    help=command.summary,
                    description=command.about,
                    epilog=command.epilog,
                    formatter_class=argparse.RawDescriptionHelpFormatter,
                    usage=command.usage or f"{prog} {name} {command._usage().partition('%(prog)s ')[2]}",
                )
                self._fill(part, in_file, own=False)
                command._fill(part, in_file)
        return top

    def _usage(self) -> str:
        words = ["%(prog)s"]
        for option in self.options:
            if option.is_positional and option.required:
                words.append(option.shown + " ..." * option.repeated)
            elif option.required:
                words.append(f"{option.name} {option.metavar or option.kind.metavar}")
        return " ".join([*words, *["COMMAND"] * bool(self.commands), "[option ...]"])

    def _fill(self, parser: Parser, in_file: Collection[str], *, own: bool = True) -> Parser:
        """Add the options; without ``own`` only the flags, to the parser of a command."""
        for group in self.groups:
            options = [option for option in group.options if own or not option.is_positional]
            to = parser.add_argument_group(group.title) if group.title else parser
            for option in options:
                # A positional argument before the name of a command cannot be optional.
                if not (option.is_positional and self.commands and option.key in in_file):
                    option.add_to(to, in_file)
        if own and self.has_program_options:
            self._add_config(parser, default=None)
            has_version = any(option.shows_version for option in self.options)
            add_program_options(parser, version=not has_version)
        elif not own:
            self._add_config(parser, default=_HIDDEN)
        return parser

    def _add_config(self, parser: argparse.ArgumentParser, default: Any) -> None:
        about = "options in TOML, by their names with _ for -; flags beat them"
        parser.add_argument("--config", type=Path, metavar="FILE", default=default, help=about)
        for flag in self.old_config:
            parser.add_argument(flag, type=Path, dest="config", default=default, help=_HIDDEN)


def key_of(flag: str) -> str:
    """Return the key in TOML of a flag."""
    return flag.lstrip("-").replace("-", "_")


def _given_elsewhere(
    options: Sequence[Option], file: Path | None, in_file: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the environment and the file give, by attribute; the environment beats the file.

    Raises:
        ConfigError: The file has an unknown key, or one of the two a wrong value.
    """
    given: dict[str, Any] = {}
    if file is not None:
        known = {key: option for option in options for key in (option.key, *map(key_of, option.old))}
        for key, value in in_file.items():
            if key not in known:
                raise ConfigError(
                    f"{file}: {key}: unknown key, expected one of {', '.join(sorted(o.key for o in options))}"
                    f"{near_misses(key, known)}"
                )
            option = known[key]
            try:
                found = option.from_file(value)
            except ConfigError as error:
                raise ConfigError(f"{file}: {key}: {error}") from None
            given[option.attribute] = _beside(file, found)
    for option in options:
        text = os.environ.get(option.environment, "") if option.environment else ""
        if text:
            try:
                given[option.attribute] = option.from_text(text)
            except ConfigError as error:
                raise ConfigError(f"{option.environment}: {error}") from None
    return given


def _beside(file: Path, value: Any) -> Any:
    """Return paths of a file relative to its folder."""
    if isinstance(value, list):
        return [_beside(file, item) for item in value]
    return file.absolute().parent / value if isinstance(value, Path) else value


def _name_old(program: str, words: Iterable[str], current: Mapping[str, str]) -> None:
    """Say which names have another one now, once each.

    Args:
        program: The command.
        words: Flags, with their values or without, or keys.
        current: The new names by the old ones.
    """
    for word in words:
        name = word.partition("=")[0]
        if name in current:
            _name_old_once(program, name, current[name])


@cache
def _name_old_once(program: str, name: str, new: str) -> None:
    """Say what the name is now, once in a process: options are parsed before and after torch is imported."""
    sys.stderr.write(f"{program}: warning: {name} is an old name, use {new}\n")


def _check_one_of(group: Group, given: Mapping[str, Any], parser: Parser) -> None:
    """Check that exactly one option of a group is given that says so."""
    if not group.one_of:
        return
    named = [option for option in group.options if given.get(option.attribute, False) is not False]
    if len(named) != 1:
        got = f"got {_shown(named)}" if named else "missing"
        parser.refuse(f"{_shown(group.options)}: {got}, expected one of them")


def _shown(options: Iterable[Option]) -> str:
    return ", ".join(option.shown for option in options)


def json_option(about: str = "print one JSON object and nothing else") -> Option:
    """Return the option ``--json``."""
    return Option("--json", SWITCH, about)


def threads_option() -> Option:
    """Return the option ``--threads``, of a command that runs torch."""
    return Option("--threads", COUNT, "CPU threads", default=1)
