"""Feature processors beside TorchRec's: the same names in state dicts, the same answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recsys
from recsys.modules import feature_processors, position_weighted, regroup
from tests.peer.torchrec_peer import configs, torchrec

pytestmark = pytest.mark.peer

VALUES = torch.tensor([1, 2, 3, 4, 5, 6, 7])
LENGTHS = torch.tensor([3, 0, 1, 2, 0, 1])
KEYS = ["a", "b", "c"]


def modules(of_peer: bool) -> Any:
    if not of_peer:
        return feature_processors, position_weighted, feature_processors, regroup
    from torchrec.modules import feature_processor, feature_processor_, fp_embedding_modules
    from torchrec.modules import regroup as peer_regroup

    return feature_processor_, feature_processor, fp_embedding_modules, peer_regroup


def batch(m: Any) -> Any:
    return m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS)


def fill(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in sorted(module.state_dict().items()):
            del name
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return module


def embeddings(m: Any) -> Any:
    config = m.EmbeddingBagConfig if m is recsys else configs.EmbeddingBagConfig
    tables = [config(name=f"t{key}", num_embeddings=9, embedding_dim=4, feature_names=[key]) for key in KEYS]
    return m.EmbeddingBagCollection(tables=tables, is_weighted=True)


def answers(m: Any) -> dict[str, Any]:
    new, old, embedded, regrouping = modules(m is torchrec)
    found: dict[str, Any] = {}
    of_one = fill(new.PositionWeightedModule(max_feature_length=4))
    found["one"] = of_one(batch(m)["a"]).weights()
    together = fill(new.PositionWeightedModuleCollection({"a": 3, "c": 5}))
    found["together"] = together(batch(m)).weights()
    by_name = fill(old.PositionWeightedModule({"a": 3}))(batch(m).to_dict())
    found["by name"] = by_name["a"].weights()
    older = fill(old.PositionWeightedProcessor({"c": 3, "a": 3}))(batch(m))
    found["older"] = [older.weights(), older.values(), older.lengths()]
    processors = {key: new.PositionWeightedModule(max_feature_length=4) for key in KEYS}
    whole = fill(embedded.FeatureProcessedEmbeddingBagCollection(embeddings(m), processors))
    found["names"] = dict.fromkeys(whole.state_dict(), 0)
    found["pooled"] = whole(batch(m)).to_dict()
    with_collection = fill(
        embedded.FeatureProcessedEmbeddingBagCollection(
            embeddings(m), new.PositionWeightedModuleCollection(dict.fromkeys(KEYS, 4))
        )
    )
    pooled = with_collection(batch(m))
    found["pooled by a collection"] = pooled.values()
    found["regrouped"] = regrouping.KTRegroupAsDict([["c", "a"], ["b"]], ["x", "y"])([pooled])
    return found


@pytest.mark.filterwarnings("ignore")
def test_answers_are_the_same() -> None:
    ours, theirs = answers(recsys), answers(torchrec)
    assert list(ours) == list(theirs)
    for name, answer in ours.items():
        torch.testing.assert_close(
            answer, theirs[name], rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
