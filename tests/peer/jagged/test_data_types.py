"""The data types beside TorchRec's: the same printed forms, the same answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import recsys
from recsys import PoolingType
from tests.peer.torchrec_peer import configs, torchrec

pytestmark = pytest.mark.peer

KEYS = ["a", "b", "c"]
VALUES = torch.arange(10, 17)
LENGTHS = torch.tensor([3, 0, 1, 2, 0, 1])
OFFSETS = torch.tensor([0, 3, 3, 4, 6, 6, 7])
WEIGHTS = torch.arange(7) / 4
NO_IDS = torch.empty(0, dtype=torch.int64)
MATRIX = torch.arange(10.0).view(2, 5)

Make = Callable[[Any], Any]
PRINTED: dict[str, Make] = {
    "jt": lambda m: m.JaggedTensor(VALUES, lengths=LENGTHS),
    "jt by offsets": lambda m: m.JaggedTensor(VALUES, offsets=OFFSETS),
    "jt weighted": lambda m: m.JaggedTensor(VALUES, weights=WEIGHTS, lengths=LENGTHS),
    "jt of floats": lambda m: m.JaggedTensor(WEIGHTS, lengths=LENGTHS),
    "jt of vectors": lambda m: m.JaggedTensor(torch.arange(14.0).view(7, 2), lengths=LENGTHS),
    "jt empty": lambda m: m.JaggedTensor.empty(),
    "jt empty weighted": lambda m: m.JaggedTensor.empty(is_weighted=True),
    "jt without IDs": lambda m: m.JaggedTensor(NO_IDS, lengths=torch.tensor([0, 0])),
    "jt from dense": lambda m: m.JaggedTensor.from_dense([torch.tensor([1.0, 2.0]), torch.tensor([3.0])]),
    "jt from dense lengths": lambda m: m.JaggedTensor.from_dense_lengths(MATRIX, torch.tensor([2, 5])),
    "jt from weighted dense lengths": lambda m: m.JaggedTensor.from_dense_lengths(
        MATRIX, torch.tensor([2, 0]), weights=MATRIX / 2
    ),
    "kjt": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS),
    "kjt by offsets": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, offsets=OFFSETS),
    "kjt weighted": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS),
    "kjt of one": lambda m: m.KeyedJaggedTensor(["a"], VALUES[:1], lengths=torch.tensor([1])),
    "kjt empty": lambda m: m.KeyedJaggedTensor.empty(),
    "kjt empty weighted": lambda m: m.KeyedJaggedTensor.empty(is_weighted=True),
    "kjt of no rows": lambda m: m.KeyedJaggedTensor(["a"], NO_IDS, lengths=NO_IDS),
    "kjt without IDs": lambda m: m.KeyedJaggedTensor(["a"], NO_IDS, lengths=torch.tensor([0, 0])),
    "kjt from lengths": lambda m: m.KeyedJaggedTensor.from_lengths_sync(KEYS, VALUES, LENGTHS),
    "kjt from offsets": lambda m: m.KeyedJaggedTensor.from_offsets_sync(KEYS, VALUES, OFFSETS),
    "kjt from jts": lambda m: m.KeyedJaggedTensor.from_jt_dict(
        {"x": m.JaggedTensor(VALUES, lengths=LENGTHS), "y": m.JaggedTensor(VALUES, lengths=LENGTHS.flip(0))}
    ),
    "kjt split": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS).split([1, 2])[1],
    "kjt permuted": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS).permute([2, 0, 1]),
    "kjt of some": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS).permute([2, 0]),
    "kjt joined": lambda m: m.KeyedJaggedTensor.concat(
        m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS).split([2, 1])[::-1]
    ),
    "jt of a key": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS)["b"],
    "kt": lambda m: m.KeyedTensor(["a", "b"], [2, 3], MATRIX),
    "kt of none": lambda m: m.KeyedTensor([], [], torch.empty(2, 0)),
    "kt from tensors": lambda m: m.KeyedTensor.from_tensor_list(["a", "b"], [MATRIX[:, :1], MATRIX[:, 1:]]),
}


@pytest.mark.parametrize("make", PRINTED.values(), ids=PRINTED)
def test_printed_forms_are_the_same(make: Make) -> None:
    assert str(make(recsys)) == str(make(torchrec))


def kjt(m: Any) -> Any:
    return m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS)


def jt(m: Any) -> Any:
    return m.JaggedTensor(WEIGHTS, lengths=LENGTHS, weights=WEIGHTS)


def regrouped(m: Any) -> Any:
    other = m.KeyedTensor(["c", "d"], [1, 1], MATRIX[:, :2])
    return m.KeyedTensor.regroup([m.KeyedTensor(["a", "b"], [2, 3], MATRIX), other], [["d", "a"], ["b", "c"]])


ANSWERS: dict[str, Make] = {
    "padded": lambda m: jt(m).to_padded_dense(),
    "padded to 2": lambda m: jt(m).to_padded_dense(2, -1.0),
    "padded to 5": lambda m: jt(m).to_padded_dense(5, 7.0),
    "padded weights": lambda m: jt(m).to_padded_dense_weights(2, -1.0),
    "dense": lambda m: jt(m).to_dense(),
    "dense weights": lambda m: jt(m).to_dense_weights(),
    "jt lengths": lambda m: m.JaggedTensor(VALUES, offsets=OFFSETS).lengths(),
    "jt offsets": lambda m: jt(m).offsets(),
    "lengths": lambda m: m.KeyedJaggedTensor(KEYS, VALUES, offsets=OFFSETS).lengths(),
    "offsets": lambda m: kjt(m).offsets(),
    "length per key": lambda m: kjt(m).length_per_key(),
    "offset per key": lambda m: kjt(m).offset_per_key(),
    "stride": lambda m: [kjt(m).stride(), *kjt(m).stride_per_key()],
    "weights of a key": lambda m: kjt(m)["c"].weights(),
    "offsets of a key": lambda m: [jagged.offsets() for jagged in kjt(m).to_dict().values()],
    "lengths of a key": lambda m: {key: jagged.lengths() for key, jagged in kjt(m).to_dict().items()},
    "permuted lengths": lambda m: kjt(m).permute([2, 0]).lengths(),
    "split strides": lambda m: [part.stride() for part in kjt(m).split([0, 1, 2])],
    "regroup": regrouped,
    "kt by key": lambda m: m.KeyedTensor(["a", "b"], [2, 3], MATRIX)["b"],
    "kt offsets": lambda m: m.KeyedTensor(["a", "b"], [2, 3], MATRIX).offset_per_key(),
    "kt size": lambda m: m.KeyedTensor(["a", "b"], [2, 3], MATRIX).size_in_bytes(),
    "kt by TorchRec's arguments": lambda m: m.KeyedTensor(["a"], [5], MATRIX, 1, [0, 5], {"a": 0})["a"],
    "lengths of from_dense": lambda m: m.JaggedTensor.from_dense([WEIGHTS, WEIGHTS[:2]]).lengths(),
    "jt size": lambda m: jt(m).size_in_bytes(),
    "size": lambda m: kjt(m).size_in_bytes(),
    "freed": lambda m: m.KeyedJaggedTensor(KEYS, VALUES.clone(), lengths=LENGTHS.clone()).clear_storage(),
    "all positions": lambda m: m.KeyedJaggedTensor(
        KEYS, VALUES, WEIGHTS, LENGTHS, OFFSETS, 2, None, [2, 2, 2], [3, 3, 1], [0, 2, 4, 6], [0, 3, 6, 7]
    ).length_per_key(),
    "all positions of from_lengths_sync": lambda m: m.KeyedJaggedTensor.from_lengths_sync(
        KEYS, VALUES, LENGTHS, WEIGHTS, None, [[3], [1], [2]], (KEYS, torch.zeros(3, 4, dtype=torch.int64))
    ).length_per_key(),
    "flat lengths": lambda m: (
        m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS.view(3, 2)).flatten_lengths().lengths()
    ),
    "empty like": lambda m: described(m.KeyedJaggedTensor.empty_like(kjt(m))),
    "empty like, elsewhere": lambda m: described(
        m.KeyedJaggedTensor.empty_like(kjt(m), torch.device("meta"))
    ),
    "jt empty like": lambda m: m.JaggedTensor.empty_like(jt(m)).weights(),
    "copied": lambda m: (
        m.KeyedJaggedTensor(KEYS, torch.zeros_like(VALUES), torch.zeros(7), torch.zeros_like(LENGTHS))
        .copy_(kjt(m))
        .to_dict()["b"]
        .weights()
    ),
    "jt copied": lambda m: (
        m.JaggedTensor(torch.zeros(7), lengths=torch.zeros_like(LENGTHS)).copy_(jt(m)).values()
    ),
    "no features": lambda m: described(m.KeyedJaggedTensor([], NO_IDS, lengths=NO_IDS, offsets=NO_IDS)),
    "no features, no lengths": lambda m: m.KeyedJaggedTensor([], NO_IDS).stride(),
    "no features asked": lambda m: [
        m.KeyedJaggedTensor.empty().length_per_key(),
        m.KeyedJaggedTensor.empty().to_dict(),
        m.KeyedJaggedTensor.empty().split([]),
    ],
    "kt of nothing": lambda m: m.KeyedTensor([], [], torch.Tensor()).offset_per_key(),
    "on meta": lambda m: [
        kjt(m).to(torch.device("meta")).length_per_key(),
        kjt(m).to(torch.device("meta"))["a"].values().shape,
        kjt(m).to(torch.device("meta")).to_dict()["c"].lengths().shape,
    ],
}


def described(batch: Any) -> dict[str, Any]:
    tensors = (batch.values(), batch.weights_or_none(), batch.lengths())
    about = [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]
    return {f"{batch.keys()} {about}": batch.stride()}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
def test_answers_are_the_same(ask: Make) -> None:
    torch.testing.assert_close(ask(recsys), ask(torchrec), rtol=0, atol=0)


def bags(m: Any, pooling: Any, **arguments: Any) -> Any:
    config = m.EmbeddingBagConfig if m is recsys else configs.EmbeddingBagConfig
    tables = [
        config(name="t", num_embeddings=10, embedding_dim=4, feature_names=["a", "b"], pooling=pooling.SUM),
        config(name="u", num_embeddings=30, embedding_dim=7, feature_names=["a", "c"], pooling=pooling.MEAN),
    ]
    return m.EmbeddingBagCollection(tables=tables, **arguments)


def rows(m: Any, dim: int = 4) -> Any:
    config = m.EmbeddingConfig if m is recsys else configs.EmbeddingConfig
    tables = [
        config(name="t", num_embeddings=20, embedding_dim=dim, feature_names=["a", "b"]),
        config(name="u", num_embeddings=30, embedding_dim=dim, feature_names=["a"]),
    ]
    return m.EmbeddingCollection(tables=tables)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
class TestFloatCollections:
    def batch(self, m: Any, weighted: bool) -> Any:
        values = torch.tensor([1, 2, 2, 9, 0, 3, 4])
        return m.KeyedJaggedTensor(["c", "a", "b"], values, WEIGHTS if weighted else None, LENGTHS)

    def test_bags_are_the_same(self, weighted: bool) -> None:
        ours, theirs = (
            bags(m, p, is_weighted=weighted)
            for m, p in ((recsys, PoolingType), (torchrec, configs.PoolingType))
        )
        assert repr(ours) == repr(theirs)
        theirs.load_state_dict(ours.state_dict())
        if weighted:  # nn.EmbeddingBag, which TorchRec calls, refuses weighted means
            with pytest.raises(NotImplementedError):
                theirs(self.batch(torchrec, weighted))
            return
        answer, expected = ours(self.batch(recsys, weighted)), theirs(self.batch(torchrec, weighted))
        assert answer.keys() == expected.keys()
        assert answer.length_per_key() == expected.length_per_key()
        assert torch.equal(answer.values(), expected.values())

    def test_single_rows_are_the_same(self, weighted: bool) -> None:
        ours, theirs = rows(recsys), rows(torchrec)
        assert repr(ours) == repr(theirs)
        theirs.load_state_dict(ours.state_dict())
        answer, expected = ours(self.batch(recsys, weighted)), theirs(self.batch(torchrec, weighted))
        assert list(answer) == list(expected)
        for name, jagged in answer.items():
            assert torch.equal(jagged.values(), expected[name].values())
            assert torch.equal(jagged.lengths(), expected[name].lengths())


def test_weighted_sums_are_the_same() -> None:
    config = {"name": "t", "num_embeddings": 20, "embedding_dim": 4, "feature_names": ["a", "b"]}
    ours = recsys.EmbeddingBagCollection([recsys.EmbeddingBagConfig(**config)], is_weighted=True)
    theirs = torchrec.EmbeddingBagCollection([configs.EmbeddingBagConfig(**config)], is_weighted=True)
    theirs.load_state_dict(ours.state_dict())
    answers = [
        module(m.KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS)).values()
        for m, module in ((recsys, ours), (torchrec, theirs))
    ]
    assert torch.equal(*answers)


def test_on_meta_the_shapes_are_the_same() -> None:
    def shapes(m: Any, pooling: Any) -> list[Any]:
        batch = m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS).to(torch.device("meta"))
        single = rows(m).to("meta")(batch)
        return [
            bags(m, pooling, device=torch.device("meta"))(batch).values().shape,
            {name: jagged.values().shape for name, jagged in single.items()},
        ]

    assert shapes(recsys, PoolingType) == shapes(torchrec, configs.PoolingType)


def test_on_meta_the_printed_forms_are_the_same() -> None:
    device = torch.device("meta")
    ours, theirs = (
        bags(recsys, PoolingType, device=device),
        bags(torchrec, configs.PoolingType, device=device),
    )
    assert str(ours) == str(theirs)
