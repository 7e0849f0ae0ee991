"""Names of tables as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name by name: its last parts between points, as many as tell it from all others.

    ``model.embedding_bags.user`` is ``user`` where no other name ends so. cpp_client/request/request_check.cpp has the
    same for the native engine.

    Args:
        names: Names of tables with the paths of their modules, each once.
    """
    parts = {name: name.split(".") for name in names}
    num_parts = dict.fromkeys(parts, 1)
    while True:
        short = {name: ".".join(parts[name][-num:]) for name, num in num_parts.items()}
        counts = Counter(short.values())
        unclear = (name for name in parts if counts[short[name]] > 1 or not short[name])
        longer = [name for name in unclear if num_parts[name] < len(parts[name])]
        if not longer:
            return short
        for name in longer:
            num_parts[name] += 1
