"""Lists of names for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recsys.as_torchrec.table import Name, Table


def listed(table: Table, words: Sequence[str]) -> list[Name]:
    """Return the names whose paths hold one of the words, in the order of their paths.

    Args:
        table: All names.
        words: Parts of paths, in any case; none for all names.
    """
    lower = [word.lower() for word in words]
    found = (entry for entry in table if not lower or any(word in entry.path.lower() for word in lower))
    return sorted(found, key=lambda entry: (entry.module, entry.name))


def names_json(names: Sequence[Name]) -> list[dict[str, Any]]:
    """Return names as values for JSON: what does not apply to a name is left away."""
    return [
        {
            "name": entry.path,
            **({"ours": entry.ours} if entry.ours is not None else {"left_out": entry.left_out}),
            **({"signature": entry.signature} if entry.signature is not None else {}),
            **({"without": dict(entry.without)} if entry.without else {}),
        }
        for entry in names
    ]


def names_text(names: Sequence[Name]) -> str:
    """Return names by module, a line each, and how many they are."""
    lines, module = list[str](), ""
    width = max((len(entry.name) for entry in names), default=0)
    for entry in names:
        if entry.module != module:
            module = entry.module
            lines.append(module)
        what = entry.ours if entry.ours is not None else f"left out: {entry.left_out}"
        lines.append(f"  {entry.name:{width}}  {what}")
        if entry.signature is not None:
            lines.append(f"  {'':{width}}  signature: {entry.signature}")
        lines.extend(f"  {'':{width}}  without {name}: {reason}" for name, reason in entry.without.items())
    num_defined = sum(entry.ours is not None for entry in names)
    lines.append(f"{num_defined} names are defined, {len(names) - num_defined} are left out")
    return "\n".join(lines)
