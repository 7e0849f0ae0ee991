"""Names of state dicts: prefixes put before them and taken away."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def append_prefix(prefix: str, name: str) -> str:
    """Return a name below a prefix; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix + name


def filter_state_dict(state_dict: OrderedDict[str, _Value], name: str) -> OrderedDict[str, _Value]:
    """Return what lies below a name, without that name.

    Args:
        state_dict: Values by name.
        name: The beginning of the names, without the dot after it.
    """
    start = f"{name}."
    return OrderedDict(
        (key.removeprefix(start), value) for key, value in state_dict.items() if key.startswith(start)
    )


def add_prefix_to_state_dict(state_dict: dict[str, Any], prefix: str) -> None:
    """Put a prefix, with the dot at its end, before all names of a state dict, in place."""
    for name in sorted(state_dict):
        state_dict[prefix + name] = state_dict.pop(name)
