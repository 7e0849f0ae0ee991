"""A question that code asks of keyed tensors before it regroups them."""

from __future__ import annotations

from collections.abc import Sequence

from recsys.jagged.keyed import KeyedTensor


def all_keys_used_once(keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]) -> bool:
    """Return whether groups have each key of some keyed tensors exactly once, and no others, and no key is doubled."""
    keys = [key for keyed in keyed_tensors for key in list(keyed.keys())]
    used = [key for group in groups for key in group]
    return set(keys) == set(used) and len(keys) == len(used) == len(set(keys))
