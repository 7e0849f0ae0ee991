"""Names in state dicts as training scripts save them, and those that the model has.

Wrappers put their own names between those of modules (``module`` of DistributedDataParallel, ``_orig_mod`` of
torch.compile, …), trainers keep the model under an attribute (``model.`` of Lightning) or a key (``state_dict``,
``ema``). The model's names are found by rule: without wrappers' names, all of them behind one prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from recsys.data.lines import counted
from recsys.errors import CheckpointError

# What wrappers put between the names of modules.
_WRAPPERS = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpoints",
    "_dmp_wrapped_module": "DistributedModelParallel",
    "_forward_module": "Fabric",
    "module": "DistributedDataParallel",
}
# Parts of prefixes and keys of weights beside the model's own.
_BESIDE = ("optim", "ema", "average", "teacher", "target", "old", "best", "backup", "shadow", "momentum")
_MOST_DEPTH = 4
# Names by which prefixes are looked for.
_NUM_TRIED = 5


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The names of a state dict that are the model's.

    Attributes:
        names: The state dict's name for each of the model's names that it has.
        unknown: What else lies beside them: the state dict's names, by what they would be in the model.
        rules: What was done to find them; nothing where all names are the model's.
    """

    names: Mapping[str, str]
    unknown: Mapping[str, str]
    rules: Sequence[str]


def match_names(found: Collection[str], expected: Collection[str]) -> Matched:
    """Find a model's names among those of a state dict.

    Args:
        found: The state dict's names.
        expected: The model's.

    Raises:
        CheckpointError: Names differ only in wrappers' names, or several prefixes fit.
    """
    if set(found) == set(expected):
        return Matched(names={name: name for name in expected}, unknown={}, rules=())
    plain = {_plain(name): name for name in expected}
    if len(plain) < len(expected):  # the model's own names differ in them alone
        plain = {name: name for name in expected}
    by_plain: dict[str, list[str]] = {}
    for name in found:
        by_plain.setdefault(_plain(name) if name not in expected else _kept(name, plain), []).append(name)
    prefix = _prefix(by_plain, plain)
    held = {full: by_plain[prefix + name] for name, full in plain.items() if prefix + name in by_plain}
    doubled = sorted(prefix + _plain(full) for full, names in held.items() if len(names) > 1)
    if doubled:
        raise CheckpointError(f"checkpoint: {some(doubled)} stand there more than once, but for prefixes")
    names = {full: names[0] for full, names in held.items()}
    used = {*names.values()}
    before = _common_start(names)
    others = [name for name in found if name not in used]
    beside = [name for name in others if not name.startswith(before)]
    unknown = {_plain(name).removeprefix(prefix): name for name in others if name.startswith(before)}
    return Matched(names=names, unknown=unknown, rules=_rules(names, prefix, beside))


def _kept(name: str, plain: Mapping[str, str]) -> str:
    return next((short for short, full in plain.items() if full == name), name)


def _plain(name: str) -> str:
    """Return a name without what wrappers put between its parts."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _prefix(found: Mapping[str, Sequence[str]], expected: Mapping[str, str]) -> str:
    """Return the prefix behind which all of the model's names stand; empty where no prefix fits.

    Raises:
        CheckpointError: Several fit.
    """
    longest = sorted(expected, key=len)[-_NUM_TRIED:]
    prefixes = {name[: -len(one)] for one in longest for name in found if name.endswith(f".{one}")}
    counts = {prefix: sum(prefix + name in found for name in expected) for prefix in {"", *prefixes}}
    most = max(counts.values())
    fitting = sorted(prefix for prefix, count in counts.items() if count == most and count)
    own = [prefix for prefix in fitting if not any(word in prefix.lower() for word in _BESIDE)] or fitting
    if "" in own and all(full in found[name] for name, full in expected.items() if name in found):
        return ""
    if len(own) > 1:
        listed = some([repr(prefix) for prefix in own])
        raise CheckpointError(
            f"checkpoint: the model's names stand there more than once, but for prefixes ({listed}): "
            "save the part that is to be served, such as model.state_dict()"
        )
    return own[0] if own else ""


def _common_start(names: Mapping[str, str]) -> str:
    """Return what all of the state dict's names begin with, and the model's names do not: whole parts of names."""
    starts = {found[: len(found) - len(full)] for full, found in names.items() if found.endswith(full)}
    return starts.pop() if len(starts) == 1 and len(names) else ""


def _rules(names: Mapping[str, str], prefix: str, beside: Sequence[str]) -> list[str]:
    parts = {part for full, name in names.items() for part in {*name.split(".")} - {*full.split(".")}}
    rules = [f"names without {part!r} ({_WRAPPERS[part]})" for part in _WRAPPERS if part in parts]
    if prefix:
        rules.append(f"names behind {prefix!r}")
    if beside:
        rules.append(f"without {counted(len(beside), 'other tensor')}: {some(sorted(beside), 3)}")
    return rules


def find_state(
    data: Mapping[Any, Any], expected: Collection[str], is_tensor: Any
) -> tuple[str, Mapping[Any, Any]]:
    """Return the dict within a checkpoint that holds most of a model's names, and the keys that lead to it.

    Args:
        data: The checkpoint.
        expected: The model's names; none if they are not known.
        is_tensor: Tells a weight from other values.
    """
    wanted = {_plain(name) for name in expected}
    last = {name.rpartition(".")[2] for name in wanted}
    best: tuple[tuple[int, int, int], str, Mapping[Any, Any]] | None = None
    for path, state in _dicts(data, "", 0):
        names = [_plain(str(name)) for name, value in state.items() if is_tensor(value)]
        if not names:
            continue
        num_held = sum(name in wanted for name in names)
        num_ending = sum(name.rpartition(".")[2] in last for name in names)
        is_beside = any(word in path.lower() for word in _BESIDE)
        rank = (num_held or num_ending, not is_beside, -path.count("."))
        if best is None or rank > best[0]:
            best = (rank, path, state)
    return ("", data) if best is None else best[1:]


def _dicts(data: Mapping[Any, Any], path: str, depth: int) -> list[tuple[str, Mapping[Any, Any]]]:
    found = [(path, data)]
    for key, value in data.items() if depth < _MOST_DEPTH else ():
        if isinstance(value, dict) and isinstance(key, str):
            found += _dicts(value, f"{path}.{key}" if path else key, depth + 1)
    return found


def nearest(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return which unknown names may be meant by missing ones; empty if none is near."""
    pairs = [(name, get_close_matches(name, unknown, n=1, cutoff=0.6)) for name in missing[:3]]
    said = ", ".join(f"{near[0]} for {name}" for name, near in pairs if near)
    return f"; nearest: {said}" if said else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Return some names for a message."""
    if not names:
        return "nothing"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
