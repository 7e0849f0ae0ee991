"""Every name of the table: it exists in TorchRec, and what it stands for here can be used as TorchRec's.

The table has the names of 1.8.0; ``newer.toml`` what 1.9.2 has beside them.
"""

from __future__ import annotations

import importlib
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from recsys.as_torchrec.table import ALL_OTHERS, TORCHREC_VERSION, Name, load_table
from recsys.base.machine import package_version
from tests.peer import torchrec_peer
from tests.peer.as_torchrec.signatures import differences

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
assert torchrec_peer.torchrec
TABLE = load_table()
AREAS = sorted({entry.area for entry in TABLE})
NEWER: dict[str, list[str]] = (
    {}
    if package_version("torchrec") == TORCHREC_VERSION
    else tomllib.loads(Path(__file__).with_name("newer.toml").read_text())
)


def of(area: str) -> list[Name]:
    return [entry for entry in TABLE if entry.area == area]


def theirs(module: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def missing(entry: Name) -> Iterator[str]:
    try:
        module = theirs(entry.module)
    except ImportError:
        yield f"{entry.module}: TorchRec has no such module"
    else:
        if entry.name != ALL_OTHERS and not hasattr(module, entry.name):
            yield f"{entry.path}: TorchRec has no such name"


def unlike(entry: Name) -> Iterator[str]:
    if entry.ours is None or any(missing(entry)):
        return
    value = getattr(theirs(entry.module), entry.name)
    home = TABLE.modules.get(str(getattr(value, "__module__", "")), {}).get(getattr(value, "__name__", ""))
    if home is not None and home != entry:
        if home.ours != entry.ours:
            yield f"{entry.path} is {entry.ours}, and {home.path} is {home.ours or 'left out'}"
        return
    ours = entry.load()
    newer = NEWER.get(entry.path, ())
    found = [each for each in differences(ours, value, entry.without) if each not in newer]
    if entry.signature is None:
        yield from (f"{entry.path} ({entry.ours}) {difference}" for difference in found)
    elif not found:
        yield f"{entry.path} ({entry.ours}) has TorchRec's signature: signature = {entry.signature!r} is not needed"
    for name in entry.without:
        without = set(entry.without) - {name}
        changed = [
            each for each in differences(ours, value, without) if each.startswith((f".{name}:", f".{name}("))
        ]
        if hasattr(ours, name) and not changed:
            yield f"{entry.path} ({entry.ours}) .{name} is TorchRec's: without is not needed"


@pytest.mark.parametrize("area", AREAS)
def test_torchrec_has_every_name_of_the_table(area: str) -> None:
    problems = [problem for entry in of(area) for problem in missing(entry)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("area", AREAS)
def test_what_is_defined_has_torchrecs_signature(area: str) -> None:
    problems = [problem for entry in of(area) for problem in unlike(entry)]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems)


def test_modules_hand_on_the_names_that_torchrecs_do() -> None:
    problems = [
        f"{module}.{name} is not {home}.{name}"
        for module, names in TABLE.handed_on.items()
        for name, home in names.items()
        if getattr(theirs(module), name, None) is not getattr(theirs(home), name, Ellipsis)
    ]
    assert TABLE.handed_on
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("kind", "config", "tables"),
    [
        ("EmbeddingBagCollection", "EmbeddingBagConfig", "_embedding_bag_configs"),
        ("EmbeddingCollection", "EmbeddingConfig", "_embedding_configs"),
    ],
)
def test_collections_keep_their_tables_where_public_code_reads_them(
    kind: str, config: str, tables: str
) -> None:
    for module in (theirs("torchrec"), importlib.import_module("recsys")):
        table = getattr(module, config)(name="t", embedding_dim=8, num_embeddings=9, feature_names=["f"])
        collection = getattr(module, kind)(tables=[table])
        assert [one.name for one in getattr(collection, tables)] == ["t"]
