from __future__ import annotations

import pytest
import torch

from recsys import KeyedJaggedTensor
from recsys.as_torchrec.datasets.batch import Batch


def _batch() -> Batch:
    kjt = KeyedJaggedTensor(keys=["a"], values=[1, 2, 3], lengths=[1, 2], weights=torch.ones(3))
    return Batch(torch.ones(2, 3), kjt, torch.tensor([0, 1]))


def test_a_batch_moves_as_a_whole() -> None:
    moved = _batch().to(torch.device("meta"), non_blocking=True)
    assert moved.dense_features.is_meta
    assert moved.labels.is_meta
    assert moved.sparse_features.values().is_meta
    assert moved.sparse_features.keys() == ["a"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pinned_batches_copy_to_a_stream() -> None:
    pinned = _batch().pin_memory()
    assert pinned.dense_features.is_pinned()
    assert pinned.sparse_features.values().is_pinned()
    moved = pinned.to(torch.device("cuda"), non_blocking=True)
    moved.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert torch.equal(moved.sparse_features.values().cpu(), torch.tensor([1, 2, 3]))
