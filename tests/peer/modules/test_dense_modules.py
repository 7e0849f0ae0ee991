"""Dense modules and models by TorchRec's names: its weights load strictly and give its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import recsys
from recsys.as_torchrec.models import deepfm as our_deepfm
from recsys.as_torchrec.models import dlrm_variants
from recsys.as_torchrec.modules import deepfm
from recsys.models import dlrm
from recsys.modules import activation, crossnet, mlp
from recsys.scripting import torchscript
from tests.peer.torchrec_peer import torchrec

models = pytest.importorskip("torchrec.models.dlrm")
modules = pytest.importorskip("torchrec.modules.crossnet")
pytestmark = pytest.mark.peer

_N, _DIM, _KEYS = 6, 4, ["a", "b", "c"]
_VECTORS = [torch.randn(5, 2, 3), torch.randn(5, 4)]
_DENSE_MODULES: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("Perceptron", mlp, "mlp", {"in_size": _N, "out_size": 3, "bias": False}),
    ("MLP", mlp, "mlp", {"in_size": _N, "layer_sizes": [4, 3]}),
    ("MLP", mlp, "mlp", {"in_size": _N, "layer_sizes": [4, 3], "activation": "swish_layernorm"}),
    ("MLP", mlp, "mlp", {"in_size": _N, "layer_sizes": [4, 3], "activation": nn.PReLU}),
    ("MLP", mlp, "mlp", {"in_size": _N, "layer_sizes": [4], "activation_on_last": False}),
    ("SwishLayerNorm", activation, "activation", {"input_dims": _N}),
    ("CrossNet", crossnet, "crossnet", {"in_features": _N, "num_layers": 2}),
    ("LowRankCrossNet", crossnet, "crossnet", {"in_features": _N, "num_layers": 2, "low_rank": 3}),
    ("VectorCrossNet", crossnet, "crossnet", {"in_features": _N, "num_layers": 2}),
    ("LowRankMixtureCrossNet", crossnet, "crossnet", {"in_features": _N, "num_layers": 2, "low_rank": 2}),
    (
        "LowRankMixtureCrossNet",
        crossnet,
        "crossnet",
        {"in_features": _N, "num_layers": 2, "num_experts": 3, "low_rank": 2, "activation": torch.sigmoid},
    ),
]


def _loaded(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """Give both random weights, which are the same."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours


@pytest.mark.parametrize(("name", "room", "path", "sizes"), _DENSE_MODULES)
def test_dense_modules(name: str, room: Any, path: str, sizes: dict[str, Any]) -> None:
    peer = pytest.importorskip(f"torchrec.modules.{path}")
    theirs = getattr(peer, name)(**sizes)
    ours = _loaded(getattr(room, name)(**sizes), theirs)
    x = torch.randn(7, _N)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    scripted = torchscript.script(fx.symbolic_trace(ours))
    assert torch.equal(scripted(x), ours(x))


@pytest.mark.parametrize(
    "make", [lambda room: room.DeepFM(nn.Linear(10, 2)), lambda room: room.FactorizationMachine()]
)
def test_lists_of_vectors(make: Callable[[Any], nn.Module]) -> None:
    theirs = make(pytest.importorskip("torchrec.modules.deepfm"))
    ours = _loaded(make(deepfm), theirs)
    torch.testing.assert_close(ours(_VECTORS), theirs(_VECTORS), rtol=1e-5, atol=1e-5)


def _bags(room: Any) -> Any:
    return room.EmbeddingBagCollection(
        tables=[
            room.EmbeddingBagConfig(
                name="t", embedding_dim=_DIM, num_embeddings=20, feature_names=["a", "b"]
            ),
            room.EmbeddingBagConfig(name="u", embedding_dim=_DIM, num_embeddings=20, feature_names=["c"]),
        ]
    )


def _inputs(num_rows: int, room: Any) -> tuple[Tensor, Any]:
    generator = torch.Generator().manual_seed(num_rows)
    lengths = torch.randint(0, 4, (3 * num_rows,), generator=generator)
    values = torch.randint(0, 20, (int(lengths.sum()),), generator=generator)
    dense = torch.randn(num_rows, 5, generator=generator)
    return dense, room.KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths)


_DLRM = {"dense_in_features": 5, "dense_arch_layer_sizes": [6, _DIM], "over_arch_layer_sizes": [7, 1]}
_MODELS: list[tuple[str, Any, dict[str, Any]]] = [
    ("DLRM", dlrm, _DLRM),
    ("DLRM_DCN", dlrm_variants, {**_DLRM, "dcn_num_layers": 2, "dcn_low_rank_dim": 3}),
    (
        "DLRM_Projection",
        dlrm_variants,
        {**_DLRM, "interaction_branch1_layer_sizes": [8], "interaction_branch2_layer_sizes": [5, 12]},
    ),
    ("SimpleDeepFMNN", our_deepfm, {"num_dense_features": 5, "hidden_layer_size": 6, "deep_fm_dimension": 3}),
]


@pytest.mark.parametrize("with_their_tables", [False, True], ids=["our-tables", "their-tables"])
@pytest.mark.parametrize(("name", "room", "sizes"), _MODELS, ids=[name for name, _, _ in _MODELS])
def test_models(name: str, room: Any, sizes: dict[str, Any], with_their_tables: bool) -> None:
    peer = pytest.importorskip("torchrec.models.deepfm") if name == "SimpleDeepFMNN" else models
    theirs = getattr(peer, name)(embedding_bag_collection=_bags(torchrec), **sizes)
    tables = torchrec if with_their_tables else recsys
    ours = _loaded(getattr(room, name)(embedding_bag_collection=_bags(tables), **sizes), theirs)
    for num_rows in (1, 33):
        expected = theirs(*_inputs(num_rows, torchrec))
        found = ours(*_inputs(num_rows, tables))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_loss() -> None:
    utils = pytest.importorskip("torchrec.datasets.utils")
    theirs = models.DLRMTrain(models.DLRM(embedding_bag_collection=_bags(torchrec), **_DLRM))
    ours = _loaded(
        dlrm_variants.DLRMTrain(dlrm.DLRM(embedding_bag_collection=_bags(torchrec), **_DLRM)), theirs
    )
    dense, sparse = _inputs(9, torchrec)
    batch = utils.Batch(dense_features=dense, sparse_features=sparse, labels=torch.arange(9) % 2)
    (loss, parts), (their_loss, their_parts) = ours(batch), theirs(batch)
    torch.testing.assert_close((loss, *parts), (their_loss, *their_parts))
