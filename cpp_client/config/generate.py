"""Generate the native server's table of settings from Python's, so that there is one truth.

Example::

    python cpp_client/config/generate.py               # writes cpp_client/config/options_table.inc
    python cpp_client/config/generate.py --out FILE    # writes elsewhere, to compare
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
if __name__ == "__main__":  # Where the packages are not installed.
    sys.path.insert(0, str(FOLDER.parent.parent))

from serve.options import NONE, Option, Section, key_of, sections  # noqa: E402

_HEAD = """\
// Made by cpp_client/config/generate.py from the dataclasses in serve/config.py; not to be changed by hand.
// A section: its table in the file, what it is about, whether it is off where none of it is given, its settings.
// A setting: its key in the table, its kind, whether it may be none, its default as a text (nullptr: there is none),
// its flag, its name in the environment, what it is for.
"""
_KINDS: dict[object, str] = {
    bool: "kYesNo",
    int: "kWhole",
    float: "kNumber",
    str: "kText",
    Path: "kPath",
    tuple[int, ...]: "kNumbers",
    tuple[str, ...]: "kTexts",
}


def table() -> str:
    """The text of ``options_table.inc``."""
    return _HEAD + "".join(_section(section) for section in sections())


def _section(section: Section) -> str:
    head = f"{_text(key_of(section.path))}, {_text(section.about)}, {_word(section.is_optional)}"
    return f"{{{head}, {{\n" + "".join(_option(option) for option in section.options) + "}},\n"


def _option(option: Option) -> str:
    cells = (
        _text(option.path[-1]),
        f"Kind::{_KINDS[option.kind]}",
        _word(option.is_optional),
        _default(option),
        _text(option.flag),
        _text(option.environment),
    )
    return f"    {{{', '.join(cells)},\n     {_text(option.about)}}},\n"


def _default(option: Option) -> str:
    if option.default is dataclasses.MISSING:
        return "nullptr"
    if option.default is None:
        return _text(NONE)
    if isinstance(option.default, tuple):
        return _text(",".join(map(str, option.default)))
    return _text(_word(option.default) if isinstance(option.default, bool) else str(option.default))


def _word(value: bool) -> str:
    return str(value).lower()


def _text(value: str) -> str:
    """As C++ writes it: JSON's escapes are C++'s where all characters are ASCII."""
    value.encode("ascii")
    return json.dumps(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "options_table.inc", help="where to write")
    args = parser.parse_args(argv)
    args.out.write_text(table(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
