"""Parts of every command line: its start and end, the parser, values of options.

Torch is imported only when needed, so that probes start fast.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from recsys.base.terminal import size_text

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Ratios of difflib, from 0 to 1: the minimum that counts as similar, and the maximum distance from the most
# similar name.
_MIN_RATIO, _RATIO_MARGIN = 0.6, 0.05
#: The command whose process lives on, and has handlers of its own for signals.
SERVER = "recsys-serve"
# Errors of the dynamic linker, of torch and of C++ where memory is lacking.
_NO_MEMORY = re.compile(
    "failed to map segment|[Cc]annot allocate memory|can't allocate memory|DefaultCPUAllocator|std::bad_alloc"
)
# torch 2.7 to 2.13 with fbgemm-gpu need about 0.6 GB to be imported; numpy, and gRPC with its threads, about 0.2 GB.
_LEAST_ADDRESS_SPACE = 700 << 20
_LEAST_WITHOUT_TORCH = 300 << 20
_SHELLS = ("bash", "fish", "tcsh", "zsh")
# Metavars of arguments whose values are paths but are not parsed as such.
_PATHS = ("ARTIFACT", "DIR", "FILE", "PATH")
# Errors of argparse that begin with "argument", or with what is required.
_ARGUMENT = re.compile(r"^argument ([^\s/:]+)(?:/[^\s:]+)?: ")
_VALUE = re.compile(r"^argument ([^\s/:]+)(?:/[^\s:]+)?: (got .*)$", re.DOTALL)
_REQUIRED = re.compile(r"^the following arguments are required: (.*)$")
_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")


def near_misses(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?``, or an empty string if no known name is similar.

    Args:
        name: The unknown name.
        known: The names that would have been valid.
    """
    matcher = difflib.SequenceMatcher(b=name)
    ratios: dict[str, float] = {}
    for candidate in known:
        matcher.set_seq1(candidate)
        ratios[candidate] = matcher.ratio()
    best = max(ratios.values(), default=0.0)
    near = [
        candidate for candidate, ratio in ratios.items() if ratio >= max(_MIN_RATIO, best - _RATIO_MARGIN)
    ]
    return f"; did you mean {' or '.join(sorted(near))}?" if near else ""


class UnusableError(Exception):
    """A package cannot be used; the message says what to install, or what to raise. Commands end with it."""


def imported(module: str) -> ModuleType:
    """Import a module that imports torch and fbgemm-gpu, and return it.

    Raises:
        UnusableError: One of them is missing or cannot be loaded.
    """
    import logging

    # fbgemm-gpu logs errors of its libraries, over several lines, before it raises them.
    root, held = logging.getLogger(), list[logging.LogRecord]()

    def hold(record: logging.LogRecord) -> bool:
        held.append(record)
        return False

    root.addFilter(hold)
    try:
        found = importlib.import_module(module)
    except (ImportError, OSError) as error:
        from recsys.base.stack import unusable_package

        if _NO_MEMORY.search(str(error)):
            raise UnusableError(_out_of_memory()) from None
        unusable = unusable_package(error)
        if unusable is None:
            raise
        raise UnusableError(unusable) from None
    finally:
        root.removeFilter(hold)
    for record in held:
        root.handle(record)
    return found


def _open_standard_files() -> None:
    """Open /dev/null in the places of standard files that are closed, so that no other file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def _ended_by_signals(program: str) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once, without a traceback, and SIGHUP do nothing to a server.

    The first process of a container ignores signals that it has no handler for.
    """

    def end(number: int, _: object) -> None:
        sys.stderr.write(f"{program}: ended by {signal.Signals(number).name} while it started\n")
        sys.stderr.flush()
        os._exit(128 + number)

    handlers: dict[int, Any] = {signal.SIGINT: end, signal.SIGTERM: end}
    if program == SERVER:
        handlers[signal.SIGHUP] = signal.SIG_IGN
    # Only the main thread may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    before = (
        {number: signal.signal(number, handler) for number, handler in handlers.items()} if is_main else {}
    )
    try:
        yield
    finally:
        for number, handler in before.items():
            if os.getpid() != 1 or number == signal.SIGINT:
                signal.signal(number, handler)


def command(
    program: str, module: str, *, options: str | None = None, needs_torch: bool = True
) -> Callable[..., int]:
    """Return the main function of a command.

    Its module is imported when it is called. If a package is missing or cannot be loaded, the command says in one line
    what to install, and its exit status is 2.

    Args:
        program: The name of the command.
        module: The module whose ``main`` runs it.
        options: A module whose ``parse`` parses the arguments without torch, before ``module`` is imported: help and
            wrong arguments are answered at once. None where ``module`` does so itself.
        needs_torch: Whether the module imports torch and fbgemm-gpu.
    """

    def main(argv: Sequence[str] | None = None) -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        if words == ["--version"]:
            print(_version_text(program))
            return 0
        _open_standard_files()
        try:
            check_address_space(needs_torch=needs_torch)
            with _ended_by_signals(program):
                if options is not None:
                    importlib.import_module(options).parse(words)
                run: Callable[[Sequence[str] | None], int] = imported(module).main
                _say_data_warnings(program)
                if program == SERVER:
                    # It has handlers of its own from when it listens.
                    return run(argv)
            return run(argv)
        except (UnusableError, UnicodeEncodeError) as error:
            text = str(error)
            if isinstance(error, UnicodeEncodeError):
                from recsys.base.files import not_utf8

                text = not_utf8(error.object)
            sys.stderr.write(f"{program}: {text}\n")
            return 2
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
                raise
            sys.stderr.write(f"{program}: {_out_of_memory()}\n")
            return 1
        except KeyboardInterrupt:
            sys.stderr.write(f"{program}: interrupted\n")
            return 1

    return main


def _address_space() -> int | None:
    """Return the limit of this process's address space in bytes; None for none."""
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(*, needs_torch: bool = True) -> None:
    """Check that torch, or numpy and gRPC, can be loaded: with less address space they abort the process.

    Raises:
        UnusableError: There is too little.
    """
    limit = _address_space()
    if limit is not None and limit < (_LEAST_ADDRESS_SPACE if needs_torch else _LEAST_WITHOUT_TORCH):
        raise UnusableError(_out_of_memory())


def _out_of_memory() -> str:
    """Return why memory cannot be had, naming the limit of the process if it has one."""
    limit = _address_space()
    if limit is None:
        return "out of memory"
    return f"out of memory: this process may have {size_text(limit)} of address space; raise it (ulimit -v unlimited)"


def _say_data_warnings(program: str) -> None:
    """Write warnings of data as lines of the command, without a place in the code."""
    import warnings

    from recsys.errors import DataWarning

    others = warnings.formatwarning

    def form(message: Any, category: Any, *place: Any, **line: Any) -> str:
        if issubclass(category, DataWarning):
            return f"{program}: warning: {message}\n"
        return others(message, category, *place, **line)

    warnings.formatwarning = form


def _version_text(program: str) -> str:
    from recsys.base.machine import package_version

    return f"{program} {package_version('recsys-serving') or 'unknown'}"


class VersionAction(argparse.Action):
    """Print the program's version and exit, unless there is a value (``nargs="?"``), which is stored."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        """Handle the option."""
        if values:
            setattr(namespace, self.dest, values)
            return
        print(_version_text(parser.prog))
        parser.exit()


class _CompletionAction(argparse.Action):
    """Print a script that completes the program's words in a shell, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, _: argparse.Namespace, values: Any, *__: Any) -> None:
        import shtab

        for each in _with_commands(parser):
            for action in each._actions:
                if action.type is Path or getattr(action.type, "is_path", False) or action.metavar in _PATHS:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        if isinstance(parser, Parser) and parser.commands:
            first = parser._get_positional_actions()[0]
            del first.complete  # type: ignore[attr-defined]
            first.choices = [shtab.Choice("file"), *parser.commands]
        print(shtab.complete(parser, values))
        parser.exit()


def add_program_options(parser: argparse.ArgumentParser, *, version: bool = True) -> None:
    """Add the options that every command has: ``--version`` and ``--print-completion``.

    Args:
        parser: The command's parser.
        version: False where the command has a ``--version`` of its own, with a ``VersionAction``.
    """
    hidden = argparse.SUPPRESS
    if version:
        about = "print the version and exit"
        parser.add_argument(
            "--version", action=VersionAction, nargs=0, dest=hidden, default=hidden, help=about
        )
    parser.add_argument(
        "--print-completion",
        action=_CompletionAction,
        choices=_SHELLS,
        dest=hidden,
        default=hidden,
        help="print a script that completes words of this command, and exit",
    )


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest option or command for an unknown one.

    Attributes:
        commands: Words that may stand in place of the first argument, and have parsers of their own.
    """

    commands: Sequence[str] = ()
    _words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments, and keep them for error messages."""
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Write what is wrong with a suggestion, and exit with status 2; the usage where it is not a value."""
        value = _VALUE.match(message)
        if value is not None:
            self.refuse(f"{value[1]}: {value[2]}")
        message = _ARGUMENT.sub(r"\1: ", message)
        message = _REQUIRED.sub(r"\1: missing, expected it", message)
        choice, flag = _INVALID_CHOICE.search(message), self._unknown_flag()
        if choice is not None:
            words = re.findall("'(.*?)'", choice[2]) or choice[2].split(", ")
            said = f"got {choice[1]!r}, expected one of {', '.join(words)}{near_misses(choice[1], words)}"
            message = message[: choice.start()] + said
        elif flag is not None:
            message += "" if flag in message else f"; got {flag}"
            message += near_misses(flag, self._shown_flags())
        self.print_usage(sys.stderr)
        self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        """Write a line on what is wrong, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")
        raise AssertionError

    def _known_flags(self) -> set[str]:
        return {flag for parser in _with_commands(self) for flag in parser._option_string_actions}

    def _shown_flags(self) -> set[str]:
        return {
            flag
            for parser in _with_commands(self)
            for flag, action in parser._option_string_actions.items()
            if action.help is not argparse.SUPPRESS
        }

    def _unknown_flag(self) -> str | None:
        """Return the first word that looks like a flag and is neither one nor a permitted abbreviation of one."""
        flags = (word.partition("=")[0] for word in self._words if re.match("--[a-z]", word))
        known = self._known_flags()
        if self.allow_abbrev:
            return next((flag for flag in flags if not any(name.startswith(flag) for name in known)), None)
        return next((flag for flag in flags if flag not in known), None)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and the parsers of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def count(text: str) -> int:
    """Parse a whole number of at least 1; an argparse ``type``."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a whole number of at least 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers of at least 1; an argparse ``type``."""
    return tuple(count(part) for part in text.split(","))


def size(text: str) -> int:
    """Parse bytes, such as ``80GB``, ``80G``, ``80GiB``, ``1.5TB`` or ``4096``; an argparse ``type``."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([KMGT]?)(i)?B?", text.strip(), re.IGNORECASE)
    unit = None if match is None else match[2].upper()
    if match is None or unit is None or (match[3] and not unit):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a size such as 80GB or 80GiB")
    return int(float(match[1]) * (_BINARY_UNITS[unit] if match[3] else _UNITS[unit]))
