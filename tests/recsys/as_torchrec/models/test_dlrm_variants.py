from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.as_torchrec.models.dlrm_variants import (
    DLRM_DCN,
    DLRM_Projection,
    DLRMTrain,
    InteractionDCNArch,
    InteractionProjectionArch,
)
from recsys.models.dlrm import DLRM
from tests.support.helpers import bag

_DIM = 4


def _bags() -> EmbeddingBagCollection:
    return EmbeddingBagCollection([bag("t", 20, _DIM, ["a", "b"]), bag("u", 20, _DIM, ["c"])])


def _inputs() -> tuple[Tensor, KeyedJaggedTensor]:
    return torch.randn(2, 5), KeyedJaggedTensor(
        keys=["a", "b", "c"], values=[1, 2, 3, 4, 5], lengths=[1, 0, 1, 1, 2, 0]
    )


def test_the_cross_network_sees_all_vectors() -> None:
    dense, sparse = torch.randn(3, _DIM), torch.randn(3, 2, _DIM)
    seen = InteractionDCNArch(2, nn.Identity())(dense, sparse)
    assert torch.equal(seen, torch.cat([dense, sparse[:, 0], sparse[:, 1]], 1))
    assert InteractionDCNArch(0, nn.Identity())(dense, sparse) is dense


def test_projections_are_multiplied_pair_by_pair() -> None:
    first, second = nn.Linear(3 * _DIM, 2 * _DIM), nn.Linear(3 * _DIM, 5 * _DIM)
    arch = InteractionProjectionArch(2, first, second)
    dense, sparse = torch.randn(3, _DIM), torch.randn(3, 2, _DIM)
    flat = torch.cat([dense, sparse.reshape(3, -1)], 1)
    # The second branch gives [D, F2]: its vectors are columns.
    products = torch.einsum("bfd,bdg->bfg", first(flat).view(3, 2, _DIM), second(flat).view(3, _DIM, 5))
    torch.testing.assert_close(arch(dense, sparse), torch.cat([dense, products.reshape(3, -1)], 1))
    assert arch(dense[:0], sparse[:0]).shape == (0, _DIM + 10)
    assert InteractionProjectionArch(0, first, second)(dense, sparse) is dense


@pytest.mark.parametrize(
    "model",
    [
        DLRM_DCN(_bags(), 5, [6, _DIM], [7, 1], 2, 3),
        DLRM_Projection(_bags(), 5, [6, _DIM], [7, 1], [8, 2 * _DIM], [3 * _DIM]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_parts_together(model: DLRM) -> None:
    dense, sparse = _inputs()
    hidden = model.inter_arch(model.dense_arch(dense), model.sparse_arch(sparse))
    assert torch.equal(model(dense, sparse), model.over_arch(hidden))
    assert model(dense, sparse).shape == (2, 1)


def test_dense_layers_on_the_meta_device() -> None:
    model = DLRM_DCN(_bags(), 5, [6, _DIM], [7, 1], 2, 3, torch.device("meta"))
    assert {name.split(".")[0] for name, p in model.named_parameters() if not p.is_meta} == {"sparse_arch"}


def test_branches_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"interaction_branch2_layer_sizes: got \[6\], expected .* multiple"):
        DLRM_Projection(_bags(), 5, [_DIM], [7, 1], [_DIM], [6])


def test_the_loss_trains_the_model() -> None:
    train = DLRMTrain(DLRM(_bags(), 5, [6, _DIM], [7, 1]))
    dense, sparse = _inputs()
    batch = SimpleNamespace(dense_features=dense, sparse_features=sparse, labels=torch.tensor([1, 0]))
    loss, (detached, logits, labels) = train(batch)
    expected = binary_cross_entropy_with_logits(train.model(dense, sparse)[:, 0], batch.labels.float())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in train.parameters())
    assert not detached.requires_grad
    assert not logits.requires_grad
    assert logits.shape == labels.shape == (2,)
