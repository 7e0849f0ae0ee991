"""Row-wise Adagrad on touched rows against the same done with full gradients.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from recsys.train.examples import Bags, Batch, Examples
from recsys.train.touched_rows import TouchedRows


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="a", embedding_dim=3, num_embeddings=12, feature_names=["x", "z"]),
                EmbeddingBagConfig(
                    name="b",
                    embedding_dim=2,
                    num_embeddings=9,
                    feature_names=["y"],
                    pooling=PoolingType.MEAN,
                ),
            ]
        )
        self.over = nn.Linear(8 + 1, 1)

    def forward(self, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        logits: Tensor = self.over(torch.cat([dense, self.ebc(kjt).values()], dim=1))
        return logits


def _batch(seed: int) -> Batch:
    generator = np.random.default_rng(seed)

    def bags(num_ids: int) -> Bags:
        return Bags.from_lists([generator.integers(num_ids, size=n).tolist() for n in (2, 0, 1, 3)])

    return Examples(
        dense=generator.standard_normal((4, 1)).astype(np.float32),
        bags={"y": bags(7), "x": bags(10), "z": bags(10)},  # the last rows of each table stay untouched
        labels=np.array([1, 0, 0, 1], dtype=np.float32),
    ).batch(np.arange(4))


def _full_gradient_steps(model: _Model, batches: list[Batch], rate: float, decay: float) -> None:
    weights = {name: p for name, p in model.named_parameters() if name.startswith("ebc")}
    states = {name: torch.zeros(len(p)) for name, p in weights.items()}
    for batch in batches:
        model.zero_grad()
        functional.binary_cross_entropy_with_logits(
            model(batch.dense, batch.kjt).squeeze(1), batch.labels
        ).backward()
        ids = {"a": ["x", "z"], "b": ["y"]}
        for name, weight in weights.items():
            touched = torch.zeros(len(weight), dtype=torch.bool)
            for feature in ids[name.split(".")[2]]:
                touched[batch.kjt[feature].values()] = True
            assert weight.grad is not None
            gradient = weight.grad + decay * weight.detach() * touched[:, None]
            states[name] += gradient.square().mean(dim=1)
            with torch.no_grad():
                weight -= rate * gradient / (states[name].sqrt() + 1e-8)[:, None]


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["plain", "decay"])
def test_touched_rows_move_as_with_full_gradients(decay: float) -> None:
    batches = [_batch(seed) for seed in range(5)]
    model, expected = _Model(), _Model()
    rows = TouchedRows(model, learning_rate=0.1, weight_decay=decay)
    for batch in batches:
        logits, touched = rows.forward(batch)
        functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels).backward()
        rows.step(touched)
    _full_gradient_steps(expected, batches, rate=0.1, decay=decay)
    for name in rows.parameter_names():
        torch.testing.assert_close(
            model.get_parameter(name), expected.get_parameter(name), rtol=1e-5, atol=1e-6
        )
        assert not torch.equal(model.get_parameter(name), _Model().get_parameter(name))


def test_the_forward_is_the_model_itself() -> None:
    model, batch = _Model(), _batch(0)
    logits, _ = TouchedRows(model, learning_rate=0.1).forward(batch)
    assert torch.equal(logits, model(batch.dense, batch.kjt))


def test_clear_untrained_zeroes_only_rows_never_touched() -> None:
    model, batch = _Model(), _batch(0)
    rows = TouchedRows(model, learning_rate=0.1)
    logits, touched = rows.forward(batch)
    logits.sum().backward()
    rows.step(touched)
    before = model.ebc.embedding_bags["a"].weight.detach().clone()
    rows.clear_untrained()
    after = model.ebc.embedding_bags["a"].weight
    seen = torch.cat([batch.kjt["x"].values(), batch.kjt["z"].values()]).unique()
    assert torch.equal(after[seen], before[seen])
    unseen = sorted(set(range(12)) - set(seen.tolist()))
    assert unseen
    assert not after[unseen].any()


def test_a_feature_in_two_tables_is_refused() -> None:
    ebc = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=name, embedding_dim=2, num_embeddings=3, feature_names=["x"])
            for name in "ab"
        ]
    )
    with pytest.raises(ValueError, match=r"feature 'x'.*expected one"):
        TouchedRows(ebc, learning_rate=0.1)
