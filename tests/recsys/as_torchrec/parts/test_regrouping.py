"""What code asks of keyed tensors around regrouping."""

from __future__ import annotations

import pytest
import torch

from recsys import KeyedTensor
from recsys.as_torchrec.parts.regrouping import all_keys_used_once
from recsys.as_torchrec.table import load_table


def keyed(*keys: str) -> KeyedTensor:
    return KeyedTensor(list(keys), [2] * len(keys), torch.arange(4.0 * len(keys)).view(2, -1))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([["a", "c"], ["b"]], True),
        ([["a", "c"]], False),
        ([["a", "c"], ["b", "a"]], False),
        ([["a", "c"], ["x"]], False),
    ],
)
def test_keys_that_are_used_once(groups: list[list[str]], expected: bool) -> None:
    assert all_keys_used_once([keyed("a", "b"), keyed("c")], groups) is expected


def test_a_key_of_two_tensors_is_not_used_once() -> None:
    assert not all_keys_used_once([keyed("a"), keyed("a")], [["a", "a"]])


@pytest.mark.parametrize(
    "name",
    ["regroup_kts", "permute_multi_embedding", "_fbgemm_permute_pooled_embs", "_regroup_keyed_tensors"],
)
def test_functions_that_regroup(name: str) -> None:
    entry = load_table().get("torchrec.sparse.jagged_tensor", name)
    assert entry is not None
    first, second = keyed("a", "b"), keyed("c")
    found = entry.load()([first, second], [["c", "a"], ["b"]])
    assert torch.equal(found[0], torch.cat([second["c"], first["a"]], dim=1))
    assert torch.equal(found[1], first["b"])
