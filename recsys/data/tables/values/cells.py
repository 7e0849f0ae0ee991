"""Lists in texts: ``a|b``, ``1, 2``, and those of Python, JSON and Postgres, ``['a', 'b']``, ``["a", "b"]``, ``{a,b}``.

A schema's separator says that a column's texts are lists. Blanks around values are not part of them. Brackets may
stand around a whole list; values within them may be quoted, and ``null``, ``NULL``, ``None`` and ``nan`` without
quotes are missing ones.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_BLANKS = " \t\r\n"
_BRACKETED = r"(?s)^\s*(\[.*\]|\{.*\}|\(.*\))\s*$"
_MISSING = ("null", "NULL", "None", "nan", "NaN")


def are_bracketed(texts: pa.Array) -> pa.Array:
    """Return whether each text is a list within brackets, bool."""
    return pc.match_substring_regex(texts, _BRACKETED)


def split(texts: pa.Array, separator: str) -> pa.Array:
    """Return the values of each text, lists of texts; null for null."""
    encoded = texts.dictionary_encode()
    different = encoded.dictionary
    is_bracketed = are_bracketed(different)
    if not pc.any(is_bracketed).as_py():
        return _trimmed(pc.split_pattern(texts, separator))
    if (
        pc.all(is_bracketed).as_py()
        and pc.all(pc.match_substring_regex(different, _simple(separator))).as_py()
    ):
        lists = _trimmed(_split_inner(pc.utf8_trim(different, _BLANKS), separator))
        return _unquoted(lists).take(encoded.indices)
    pattern = _item(separator)
    items = [
        _items(text, separator, pattern) if in_brackets else _plain_items(text, separator)
        for text, in_brackets in zip(different.to_pylist(), is_bracketed.to_pylist(), strict=True)
    ]
    return pa.array(items, pa.list_(different.type)).take(encoded.indices)


def _simple(separator: str) -> str:
    """Return the pattern of lists in brackets in which a separator is one, and a quote begins or ends a value."""
    other = r"[^'\"\\" + re.escape(separator) + "]*"
    double, single = other.replace("'", ""), other.replace('\\"', "")
    value = rf"""\s*("{double}"|'{single}'|{other})\s*"""
    between = r"\s" if separator == " " else re.escape(separator)
    return rf"^\s*[\[{{(]{value}({between}{value})*[\]}})]\s*$"


def _split_inner(texts: pa.Array, separator: str) -> pa.Array:
    inner = pc.utf8_trim(pc.utf8_slice_codeunits(texts, 1, -1), _BLANKS)
    return pc.split_pattern_regex(inner, r"\s+") if separator == " " else pc.split_pattern(inner, separator)


def _trimmed(lists: pa.Array) -> pa.Array:
    return _with_values(lists, pc.utf8_trim(lists.values, _BLANKS))


def _unquoted(lists: pa.Array) -> pa.Array:
    """Return lists without quotes around values, and with empty texts for missing values, which are dropped."""
    values = lists.values
    is_missing = pc.is_in(values, pa.array(_MISSING, values.type))
    values = pc.replace_substring_regex(values, r"""(?s)^["'](.*)["']$""", r"\1")
    return _with_values(lists, pc.if_else(is_missing, pa.scalar("", values.type), values))


def _with_values(lists: pa.Array, values: pa.Array) -> pa.Array:
    mask = lists.is_null() if lists.null_count else None
    return type(lists).from_arrays(lists.offsets, values, mask=mask)


def _plain_items(text: str, separator: str) -> list[str]:
    return [item.strip(_BLANKS) for item in text.split(separator)]


def _item(separator: str) -> re.Pattern[str]:
    """Return the pattern of a value and the separator behind it: in double quotes, in single ones, or in none."""
    between = r"\s" if separator == " " else re.escape(separator)
    # A quoted value ends at its quote, unless that is doubled or behind a backslash; another one at the separator.
    return re.compile(
        rf"\s*(?:\"((?:[^\"\\]|\\.|\"\")*)\"|'((?:[^'\\]|\\.|'')*)'|((?:(?!{between}).)*))\s*(?:{between}|$)",
        re.DOTALL,
    )


def _items(text: str, separator: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the values of a list within brackets, some of which may be quoted."""
    inner = text.strip(_BLANKS)[1:-1]
    items, at = [], 0
    while at < len(inner):
        found = pattern.match(inner, at)
        if found is None:  # a quote within a value
            return _plain_items(inner, separator)
        at = max(found.end(), at + 1)
        double, single, bare = found.groups()
        if bare is None:
            quoted, quote = (double, '"') if single is None else (single, "'")
            items.append(_unescaped(quoted, quote))
        else:
            item = bare.strip(_BLANKS)
            items.append("" if item in _MISSING else item)
    return items


def _unescaped(text: str, quote: str) -> str:
    """Return a quoted text as it was before it was quoted."""
    text = text.replace(quote * 2, quote)
    if "\\" not in text:
        return text
    plain = re.sub(r"\\(U[0-9a-fA-F]{8}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", _escaped, text, flags=re.DOTALL)
    # JSON writes characters beyond 16 bits as two.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    return chr(min(int(code[1:], 16), 0x10FFFF))


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
