"""The rows of IDs that the C++ tests read are those of every path in Python."""

from __future__ import annotations

import numpy as np
import torch

from recsys.base.hashing import mix_ids, rows_of_ids
from recsys.ops import mixed_ids
from tests.cases.rows_of_ids import FILE, fmix64, read, written

CASES = read()
IDS = np.array([one for one, _, _ in CASES])
#: What the reference implementation gives, MurmurHash3.cpp compiled.
KNOWN = {0: 0, 1: 0xB456BCFC34C2CB2C, 2: 0x3ABF2A20650683E7}


def test_the_file_is_not_out_of_date() -> None:
    assert FILE.read_text() == written(), "python -m tests.cases.rows_of_ids writes it"


def test_the_cases_use_the_hash_that_they_name() -> None:
    assert {number: fmix64(number) for number in KNOWN} == KNOWN


def test_numpy() -> None:
    found = [int(rows_of_ids(np.array([one]), "fmix64", num_rows)[0]) for one, num_rows, _ in CASES]
    assert found == [row for _, _, row in CASES]


def test_torch_eager_and_scripted() -> None:
    expected = torch.tensor([row for _, _, row in CASES])
    moduli = torch.tensor([num_rows for _, num_rows, _ in CASES])
    scripted = torch.jit.freeze(torch.jit.trace(_Mixed().eval(), torch.zeros(1, dtype=torch.int64)))
    for mix in (mixed_ids, scripted):
        found = mix(torch.from_numpy(IDS))
        assert int(found.min()) >= 0
        assert torch.equal(found % moduli, expected)


class _Mixed(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return mixed_ids(ids)


def test_ids_that_are_no_rows_of_their_own_array() -> None:
    ids = IDS.copy()
    mix_ids(ids)
    assert np.array_equal(ids, IDS)
    assert mix_ids(np.array([[5, 6]])[:, ::2]).shape == (1, 1)
    assert mix_ids(np.array([], dtype=np.int64)).dtype == np.int64
