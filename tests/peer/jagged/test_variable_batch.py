"""Variable batch per feature beside TorchRec's: the same printed forms, batch sizes, parts and pooled rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import recsys
from tests.peer.torchrec_peer import configs, torchrec

pytestmark = pytest.mark.peer

KEYS = ["a", "b", "c"]
VALUES = torch.tensor([1, 2, 3, 4, 5, 6, 7])
LENGTHS = torch.tensor([3, 0, 1, 2, 0, 1])
OFFSETS = torch.tensor([0, 3, 3, 4, 6, 6, 7])
WEIGHTS = torch.arange(7) / 4
STRIDES = [[2], [1], [3]]
TWO_RANKS = [[1, 1], [1, 0], [2, 1]]
INVERSE = (["c", "a", "b"], torch.tensor([[2, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]]))

Make = Callable[[Any], Any]


def kjt(m: Any, **changes: Any) -> Any:
    given = {"values": VALUES, "weights": WEIGHTS, "lengths": LENGTHS, "stride_per_key_per_rank": STRIDES}
    return m.KeyedJaggedTensor(KEYS, **(given | {"inverse_indices": INVERSE} | changes))


def jts(m: Any) -> dict[str, Any]:
    return {
        "x": m.JaggedTensor(VALUES[:4], lengths=LENGTHS[:3]),
        "y": m.JaggedTensor(VALUES, lengths=LENGTHS),
    }


BATCHES: dict[str, Make] = {
    "one rank": kjt,
    "plain": lambda m: kjt(m, weights=None),
    "no inverse indices": lambda m: kjt(m, inverse_indices=None),
    "by offsets": lambda m: kjt(m, lengths=None, offsets=OFFSETS),
    "two ranks": lambda m: kjt(m, stride_per_key_per_rank=TWO_RANKS),
    "strides as a tensor": lambda m: kjt(m, stride_per_key_per_rank=torch.IntTensor(TWO_RANKS)),
    "lengths per key": lambda m: kjt(m, length_per_key=[3, 1, 3]),
    "a key of no rows": lambda m: kjt(m, stride_per_key_per_rank=[[3], [0], [3]], inverse_indices=None),
    "from lengths": lambda m: m.KeyedJaggedTensor.from_lengths_sync(
        KEYS, VALUES, LENGTHS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "from offsets": lambda m: m.KeyedJaggedTensor.from_offsets_sync(
        KEYS, VALUES, OFFSETS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "from jts": lambda m: m.KeyedJaggedTensor.from_jt_dict(jts(m)),
    "split": lambda m: kjt(m, inverse_indices=None).split([1, 2])[1],
    "permuted": lambda m: kjt(m, inverse_indices=None).permute([2, 0, 1]),
    "permuted on two ranks": lambda m: kjt(
        m, stride_per_key_per_rank=TWO_RANKS, inverse_indices=None
    ).permute([1, 2]),
    "joined": lambda m: m.KeyedJaggedTensor.concat(kjt(m, inverse_indices=None).split([2, 1])[::-1]),
    "joined with inverse indices": lambda m: m.KeyedJaggedTensor.concat(
        [
            kjt(m, inverse_indices=(KEYS, INVERSE[1])),
            m.KeyedJaggedTensor(
                ["d"],
                VALUES[:1],
                WEIGHTS[:1],
                torch.tensor([1, 0]),
                stride_per_key_per_rank=[[2]],
                inverse_indices=(["d"], torch.tensor([[1, 0, 1, 1]])),
            ),
        ]
    ),
    "moved": lambda m: kjt(m).to(torch.device("cpu")),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
class TestBatches:
    def test_printed_forms_are_the_same(self, make: Make) -> None:
        assert str(make(recsys)) == str(make(torchrec))

    def test_batch_sizes_are_the_same(self, make: Make) -> None:
        ours, theirs = make(recsys), make(torchrec)
        for name in (
            "keys",
            "stride",
            "stride_per_key",
            "stride_per_key_per_rank",
            "variable_stride_per_key",
            "lengths_offset_per_key",
            "length_per_key",
            "offset_per_key",
        ):
            assert getattr(ours, name)() == getattr(theirs, name)(), name

    def test_tensors_are_the_same(self, make: Make) -> None:
        ours, theirs = make(recsys), make(torchrec)
        for name in ("values", "lengths", "offsets", "weights_or_none"):
            torch.testing.assert_close(getattr(ours, name)(), getattr(theirs, name)(), rtol=0, atol=0)
        mine, other = ours.inverse_indices_or_none(), theirs.inverse_indices_or_none()
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine[0] == other[0]
            assert torch.equal(mine[1], other[1])

    def test_keys_are_the_same(self, make: Make) -> None:
        ours, theirs = make(recsys), make(torchrec)
        mine, other = ours.to_dict(), theirs.to_dict()
        assert list(mine) == list(other)
        for key in mine:
            for jagged, peer in ((mine[key], other[key]), (ours[key], theirs[key])):
                assert str(jagged) == str(peer)
                torch.testing.assert_close(jagged.offsets(), peer.offsets(), rtol=0, atol=0)


def collection(m: Any, kind: str, **arguments: Any) -> Any:
    config = getattr(recsys if m is recsys else configs, f"{kind}Config")
    tables = [
        config(name="t", num_embeddings=10, embedding_dim=4, feature_names=["a", "b"]),
        config(name="u", num_embeddings=10, embedding_dim=4, feature_names=["c", "a"]),
    ]
    return getattr(m, f"{kind}Collection")(tables=tables, **arguments)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_pooled_rows_and_gradients_are_the_same(weighted: bool) -> None:
    ours, theirs = (collection(m, "EmbeddingBag", is_weighted=weighted) for m in (recsys, torchrec))
    theirs.load_state_dict(ours.state_dict())
    answers = []
    for m, module in ((recsys, ours), (torchrec, theirs)):
        answer = module(kjt(m))
        (answer.values() * torch.arange(answer.values().numel()).view(4, -1)).sum().backward()
        answers.append(answer)
    assert answers[0].keys() == answers[1].keys()
    torch.testing.assert_close(answers[0].values(), answers[1].values())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_sequences_are_the_same_and_not_expanded() -> None:
    ours, theirs = (collection(m, "Embedding") for m in (recsys, torchrec))
    theirs.load_state_dict(ours.state_dict())
    mine, other = ours(kjt(recsys)), theirs(kjt(torchrec))
    assert list(mine) == list(other)
    for name in mine:
        torch.testing.assert_close(mine[name].values(), other[name].values())
        assert torch.equal(mine[name].lengths(), other[name].lengths())
    assert mine["c"].lengths().numel() == 3


def test_both_refuse_batch_sizes_without_inverse_indices() -> None:
    for m, error in ((recsys, ValueError), (torchrec, RuntimeError)):
        with pytest.raises(error):
            collection(m, "EmbeddingBag")(kjt(m, inverse_indices=None))


def test_theirs_loses_the_inverse_indices_of_some_keys_and_ours_keeps_them() -> None:
    assert kjt(torchrec).permute([2, 0, 1]).inverse_indices_or_none() is None
    batch = kjt(recsys)
    collection_of_all = collection(recsys, "EmbeddingBag")
    turned = collection_of_all(batch.permute([2, 0, 1])).values()
    assert torch.equal(turned, collection_of_all(batch).values())
