"""Kinds of values: how an option's value is written in a flag, in the environment and in TOML."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recsys.base.cli import near_misses, size
from recsys.base.remote import is_address

_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# The largest number of a range, which keeps 0-999999999 from being expanded.
_MAX_OF_RANGE = 65535
_SHOWN = 80


class ConfigError(ValueError):
    """An option cannot be used; the message says what was got and expected, and where it is."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The values of an option.

    Attributes:
        expected: What a value is, for errors.
        parse: Parses a text; raises ``ValueError`` or ``ArgumentTypeError``, whose message stands in the error if it
            begins with "got".
        example: The text of a value.
        metavar: The name of a value in the help.
        in_file: The types of a value in TOML.
        is_list: Whether a list in TOML is the text of its items with commas between.
        choices: All values, if they are few.
    """

    expected: str
    parse: Callable[[str], Any]
    example: str
    metavar: str = "TEXT"
    in_file: tuple[type, ...] = (str,)
    is_list: bool = False
    choices: tuple[str, ...] = ()

    def from_text(self, text: str) -> Any:
        """Parse the value of a flag or an environment variable.

        Raises:
            ConfigError: The text is not a valid value.
        """
        try:
            return self.parse(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            said = str(error)
            if not said.startswith("got "):
                said = f"got {text[:_SHOWN]!r}, expected {self.expected}{near_misses(text, self.choices)}"
            raise ConfigError(said) from None

    def from_file(self, value: object) -> Any:
        """Convert a value of TOML.

        Raises:
            ConfigError: It has another type, or is not a valid value.
        """
        if self.is_list and isinstance(value, list) and all(type(v) in (int, str) for v in value):
            return self.from_text(",".join(map(str, value))) if value else ()
        if type(value) not in self.in_file:
            raise ConfigError(f"got {str(value)[:_SHOWN]!r}, expected {self.expected}")
        return self.from_text(str(value).lower() if type(value) is bool else str(value))


def whole(least: int | None = None, most: int | None = None, *, metavar: str = "N") -> Kind:
    """Return the kind of whole numbers, at least ``least`` and at most ``most``."""
    expected = "a whole number" + _bounds("of at least", least, most)

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError
        number = int(text)
        if (least is not None and number < least) or (most is not None and number > most):
            raise ValueError
        return number

    return Kind(
        expected=expected,
        parse=parse,
        example=str(3 if least is None else max(3, least)),
        metavar=metavar,
        in_file=(int,),
    )


def number(
    least: float | None = None, most: float | None = None, *, above: float | None = None, metavar: str = "X"
) -> Kind:
    """Return the kind of finite numbers, at least ``least`` or above ``above``, and at most ``most``."""
    bounds = _bounds("of at least", least, most) if above is None else _bounds("above", above, most)

    def parse(text: str) -> float:
        found = float(text)
        if not math.isfinite(found):
            raise ValueError
        if (above is not None and found <= above) or (least is not None and found < least):
            raise ValueError
        if most is not None and found > most:
            raise ValueError
        return found

    return Kind(
        expected=f"a number{bounds}", parse=parse, example="0.5", metavar=metavar, in_file=(int, float)
    )


def _bounds(words: str, least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most:.15g}"
    return f" {words} {least:.15g}" + ("" if most is None else f", at most {most:.15g}")


def one_of(choices: Sequence[str]) -> Kind:
    """Return the kind of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Kind(
        expected=f"one of {', '.join(choices)}", parse=parse, example=choices[-1], choices=tuple(choices)
    )


def text_like(example: str, metavar: str) -> Kind:
    """Return the kind of texts whose form the command checks later, such as ``TABLE=TYPE``."""
    return Kind(
        expected=f"a text such as {example}",
        parse=str,
        example=example,
        metavar=metavar,
        in_file=(str, int, float),
    )


def _truth(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError
    return _WORDS[text.lower()]


def _path(text: str) -> Path:
    if not text:
        raise ValueError
    return Path(text)


def _location(text: str) -> Path | str:
    return text if is_address(text) else _path(text)


def _seconds(text: str) -> float:
    """Return a time in seconds; a number without a unit is one of seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)?", text.strip())
    if found is None or not float(found[1]):
        raise ValueError
    return float(found[1]) * _UNITS_S[found[2] or "s"]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(COUNT.parse(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of a text such as ``0-3,5``, each once, in ascending order."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if match is None:
            raise ValueError
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= _MAX_OF_RANGE:
            raise ValueError
        found.update(range(first, last + 1))
    return tuple(sorted(found))


TEXT = Kind(expected="a text", parse=str, example="text")
PATH = Kind(expected="a path", parse=_path, example="/some/where", metavar="FILE")
#: A path, or an address such as s3://bucket/models, which stays a text that the command checks later.
ADDRESS = Kind(
    expected="a path, or an address such as s3://bucket/models",
    parse=_location,
    example="s3://bucket/models",
    metavar="PATH",
)
SWITCH = Kind(expected="true or false", parse=_truth, example="true", in_file=(bool,))
INTEGER = whole()
NUMBER = Kind(expected="a number", parse=float, example="0.5", metavar="X", in_file=(int, float))
COUNT = whole(1)
COUNTS = Kind(
    expected="whole numbers of at least 1 with commas between",
    parse=_wholes,
    example="32,16",
    metavar="N,N",
    in_file=(str, int),
    is_list=True,
)
NUMBERS = Kind(
    expected="numbers with commas between",
    parse=_numbers,
    example="1,0.5",
    metavar="X,X",
    in_file=(str, int, float),
    is_list=True,
)
NAMES = Kind(
    expected="names with commas between", parse=_names, example="a,b", metavar="NAME,NAME", is_list=True
)
#: Names that a caller may leave out by an empty text, such as that of an unset variable of a shell.
SOME_NAMES = replace(NAMES, parse=lambda text: _names(text) if text else ())
RANGES = Kind(expected="numbers such as 0-3,5", parse=_ranges, example="0-3,5", in_file=(str,), is_list=True)
SIZE = Kind(
    expected="a size such as 80GB or 4MiB", parse=size, example="80GB", metavar="SIZE", in_file=(int, str)
)
DURATION = Kind(
    expected="a time such as 30s, 5m or 2h",
    parse=_seconds,
    example="30s",
    metavar="TIME",
    in_file=(int, float, str),
)
SEED = whole(0)
#: The time that a measurement may take.
SECONDS = number(above=0, most=3600, metavar="S")
