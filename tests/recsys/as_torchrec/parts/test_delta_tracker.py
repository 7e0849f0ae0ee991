"""The tracker by TorchRec's names."""

from __future__ import annotations

import pytest
import torch

from recsys import EmbeddingBagCollection
from recsys.as_torchrec.parts.delta_tracker import ModelDeltaTracker, TrackingMode
from recsys.optim import apply_optimizer_in_backward
from tests.support.helpers import bag, kjt_of


def made() -> EmbeddingBagCollection:
    model = EmbeddingBagCollection([bag("x", 20, 8, ["a"]), bag("y", 30, 8, ["b"])])
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    return model


def test_each_consumer_gets_what_is_new_to_it() -> None:
    model = made()
    tracker = ModelDeltaTracker(model, consumers=["one", "two"], fqns_to_skip=["y"])
    assert tracker.fqn_to_feature_names() == {"embedding_bags.x": ["a"]}
    assert tracker.get_tracked_modules() == {"": model}
    for ids in ([1, 5], [7]):
        model(kjt_of({"a": [ids], "b": [[2]]})).values().sum().backward()
        tracker.step()
        if 5 in ids:
            assert {n: ids.tolist() for n, ids in tracker.get_unique_ids("one").items()} == {
                "embedding_bags.x": [1, 5]
            }
    assert tracker.get_unique("one")["embedding_bags.x"].ids.tolist() == [7]
    assert tracker.get_unique("two")["embedding_bags.x"].ids.tolist() == [1, 5, 7]
    model(kjt_of({"a": [[3]], "b": [[2]]})).values().sum().backward()
    tracker.clear()
    assert not tracker.get_unique_ids("two")["embedding_bags.x"].numel()
    with pytest.raises(ValueError, match=r"expected TrackingMode\.ID_ONLY"):
        ModelDeltaTracker(model, mode=TrackingMode.EMBEDDING)
    with pytest.raises(ValueError, match=r"top_percentage: got 0\.5"):
        tracker.get_unique("one", top_percentage=0.5)
