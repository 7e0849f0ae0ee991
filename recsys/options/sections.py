"""Tables of a TOML file: sections with the options of a group, and documents that a command reads itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from recsys.base.cli import near_misses
from recsys.options.kinds import ConfigError


def own_part(in_file: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Return the table of a command, where one file has the options of several; else all."""
    found = in_file.get(section) if section else None
    return found if isinstance(found, Mapping) else in_file


def without_sections(
    file: Path,
    in_file: Mapping[str, Any],
    sections: Mapping[str, Collection[str]],
    documents: Collection[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a file by key, whether they stand in sections or not, and its documents by name.

    Args:
        file: For messages.
        in_file: The contents of the file.
        sections: The keys of each section.
        documents: The names of tables that a command reads itself.

    Raises:
        ConfigError: A section has a key of another one, or a key is given twice.
    """
    options: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, value in in_file.items():
        if isinstance(value, Mapping) and name in documents:
            found[name] = value
            continue
        in_section = isinstance(value, Mapping) and name in sections
        for key, item in value.items() if in_section else [(name, value)]:
            if in_section:
                _check_place(file, name, key, sections)
            if key in options:
                raise ConfigError(f"{file}: {key}: got it twice, expected it in one place")
            options[key] = item
    return options, found


def _check_place(file: Path, section: str, key: str, sections: Mapping[str, Collection[str]]) -> None:
    if key in sections[section]:
        return
    place = next((f"; it belongs in [{name}]" for name, keys in sections.items() if key in keys), "")
    raise ConfigError(
        f"{file}: {section}.{key}: unknown key of [{section}], expected one of {', '.join(sorted(sections[section]))}"
        f"{place or near_misses(key, sections[section])}"
    )


def value_text(value: Any) -> str:
    """Return a value as TOML.

    Args:
        value: A text, number, boolean or path, or a list or tuple of them; a path as it stands.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, str | Path):
        text = "".join(
            _ESCAPES.get(c, c) if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in str(value)
        )
        return f'"{text}"'
    return repr(value)


def document_lines(name: str, document: Mapping[str, Any]) -> list[str]:
    """Return a document as lines of TOML: values, tables and lists of tables."""
    plain = {key: value for key, value in document.items() if not _is_table(value)}
    lines = ["", f"[{name}]", *(f"{_key(key)} = {value_text(value)}" for key, value in plain.items())]
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += document_lines(f"{name}.{_key(key)}", value)
        elif _is_table(value):
            for item in value:
                lines += document_lines(f"[{name}.{_key(key)}]", item)
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
    )


def _key(name: str) -> str:
    is_bare = name.isascii() and bool(name) and all(c.isalnum() or c in "_-" for c in name)
    return name if is_bare else value_text(name)


_ESCAPES = {'"': '\\"', "\\": "\\\\"}
