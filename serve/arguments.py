"""Command lines that say in few words what is wrong: how the tool is called, and what was probably meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from serve.texts import near_misses

_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from ")


class Parser(argparse.ArgumentParser):
    """Says what was probably meant by an unknown flag or word."""

    _words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As always; the words are kept for errors, which may be about others than the one that is misspelt."""
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Write the usage and what is wrong, and exit with 2."""
        choice = _INVALID_CHOICE.search(message)
        if choice is not None:
            words = [str(word) for action in self._actions for word in action.choices or ()]
            super().error(message + near_misses(choice[1], words))
        flag = self._unknown_flag()
        if flag is not None:
            message += "" if flag in message else f"; got {flag}"
            message += near_misses(flag, self._known_flags())
        super().error(message)

    def _known_flags(self) -> set[str]:
        return {flag for parser in _with_commands(self) for flag in parser._option_string_actions}

    def _unknown_flag(self) -> str | None:
        """The first word that looks like a flag and is none, nor the beginning of one where that is enough."""
        flags = (word.partition("=")[0] for word in self._words if re.match("--[a-z]", word))
        known = self._known_flags()
        if self.allow_abbrev:
            return next((flag for flag in flags if not any(name.startswith(flag) for name in known)), None)
        return next((flag for flag in flags if flag not in known), None)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()
