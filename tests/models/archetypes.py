"""The archetypes of the field, small: how each is made, what it takes, and how it is trained.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy

from recsys import EmbeddingBagCollection, EmbeddingCollection
from recsys.as_torchrec.models.deepfm import SimpleDeepFMNN
from recsys.as_torchrec.models.dlrm_variants import DLRM_DCN
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models import zoo
from recsys.models.click import ClickModel
from recsys.models.dlrm import DLRM
from recsys.models.networks import factories
from tests.models import crossing, sequences, several
from tests.support.helpers import bag, kjt_of, sequence

_DIM, _DENSE, _SIZE = 8, 3, 6
_ITEMS = 40
#: The candidates' own IDs: neighbours among them are one number in float32, and most in float64.
RAW_ITEM_IDS = 2**53 + torch.arange(_ITEMS)
Rows = Mapping[str, list[list[int]]]


def clicks(outputs: Any, labels: Tensor) -> Tensor:
    """The loss of probabilities, one output or several."""
    several_outputs = outputs.values() if isinstance(outputs, dict) else [outputs]
    return sum(
        binary_cross_entropy(o.reshape(len(labels)), labels)
        for o in several_outputs
        if o.numel() == len(labels)
    )


def logits(outputs: Any, labels: Tensor) -> Tensor:
    """The loss of one logit."""
    return binary_cross_entropy_with_logits(outputs.reshape(len(labels)), labels)


def next_item(outputs: Any, labels: Tensor) -> Tensor:
    """The loss of a score for each item; labels stand for items."""
    return cross_entropy(outputs, labels.long())


@dataclass(frozen=True, kw_only=True)
class Archetype:
    """A model, its inputs and its loss.

    Attributes:
        make: Returns the model that is trained.
        features: For each sparse feature its number of IDs, and the least and most IDs of a row.
        aligned: The feature whose rows are as long.
        dense: Number of dense features.
        loss: Of the outputs and labels of 0 and 1.
        served: Returns the model that is exported, of the trained one.
        asked: The features that the served model takes; empty for all.
        options: Of the export.
    """

    make: Callable[[], nn.Module]
    features: Mapping[str, tuple[int, int, int]]
    aligned: Mapping[str, str] = field(default_factory=dict)
    dense: int = 0
    loss: Callable[[Any, Tensor], Tensor] = clicks
    served: Callable[[Any], nn.Module] = lambda model: model
    asked: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> tuple[str, ...]:
        """The inputs that the rows of a ranking request share: the user's."""
        names = tuple(name for name in _OF_USERS if name in self.features and not self.asked)
        if len(names) == len(self.features):
            return ()
        return (*(["dense_features"] if self.dense and names else []), *names)

    def rows(self, num_rows: int, seed: int) -> tuple[Tensor | None, Rows]:
        """Return random inputs."""
        generator = torch.Generator().manual_seed(seed)
        rows = {}
        for name, (num_ids, least, most) in self.features.items():
            lengths = torch.randint(least, most + 1, (num_rows,), generator=generator)
            if name in self.aligned:
                lengths = torch.tensor([len(row) for row in rows[self.aligned[name]]])
            rows[name] = [torch.randint(0, num_ids, (int(n),), generator=generator).tolist() for n in lengths]
        dense = torch.randn(num_rows, self.dense, generator=generator) if self.dense else None
        return dense, rows


#: Features of users; others are those of candidates.
_OF_USERS = ("user", "history", "times", "cat_0", "cat_1", "cat_3")


def call(model: nn.Module, dense: Tensor | None, rows: Rows) -> Any:
    """Return what a model says of inputs."""
    sparse = {"sparse_features": kjt_of(rows)}
    return model(**({} if dense is None else {"dense_features": dense}), **sparse)


def trained(case: Archetype, steps: int = 8) -> tuple[nn.Module, list[float]]:
    """Return a model after a few steps on one batch, and the loss of each step."""
    torch.manual_seed(0)
    model = case.make()
    dense, rows = case.rows(64, seed=1)
    labels = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(2)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = case.loss(call(model, dense, rows), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


_BAGS = {"user": (30, 1, 1), "genres": (20, 0, 4), "item": (_ITEMS, 1, 1)}
_HISTORY = {"history": (_ITEMS, 0, _SIZE + 2), "target": (_ITEMS, 1, 1)}


def _bags(features: Mapping[str, tuple[int, int, int]] = _BAGS, dim: int = _DIM, prefix: str = "") -> Any:
    return EmbeddingBagCollection(
        [bag(f"{prefix}{name}s", num_ids, dim, [name]) for name, (num_ids, _, _) in features.items()]
    )


def _items() -> EmbeddingCollection:
    return EmbeddingCollection([sequence("items", _ITEMS, _DIM, list(_HISTORY))])


def _users() -> EmbeddingBagCollection:
    return EmbeddingBagCollection([bag("users", 30, _DIM, ["user"])])


def _built(factory: Callable[..., ClickModel], *labels: str, **sizes: Any) -> ClickModel:
    """Return what recsys-train makes: a model of a factory, with labels of their own names."""
    schema = Schema(
        labels=tuple(LabelColumn(name=name) for name in labels or ("click",)),
        dense=tuple(DenseColumn(name=f"d{i}") for i in range(_DENSE)),
        tables=tuple(
            TableSpec(name=f"{name}s", num_embeddings=n, feature_names=(name,))
            for name, (n, _, _) in _BAGS.items()
        ),
    )
    return factory(tables=_tables(_BAGS), dense_in_features=_DENSE, inputs=schema.to_json(), **sizes)


def _din() -> ClickModel:
    history = {
        "name": "items",
        "num_embeddings": _ITEMS,
        "embedding_dim": _DIM,
        "feature_names": list(_HISTORY),
    }
    return zoo.build_din(
        tables=[history, *_tables({"user": _BAGS["user"]})],
        dense_in_features=_DENSE,
        attention={
            "history": "history",
            "target": "target",
            "max_history": _SIZE,
            "layer_sizes": [8],
            "softmax": True,
        },
        over_layer_sizes=[8],
    )


def _tables(features: Mapping[str, tuple[int, int, int]]) -> list[dict[str, Any]]:
    return [
        {"name": f"{name}s", "num_embeddings": n, "embedding_dim": _DIM, "feature_names": [name]}
        for name, (n, _, _) in features.items()
    ]


def _retrieval(towers: several.TwoTowers) -> nn.Module:
    every = kjt_of({"item": [[i] for i in range(_ITEMS)], "genres": [[i % 20] for i in range(_ITEMS)]})
    with torch.no_grad():
        return several.Retrieval(towers, towers.item(every), RAW_ITEM_IDS).eval()


_MULTI_HOT = {f"cat_{i}": (20 + 7 * i, 1, 1 + 2 * (i % 3)) for i in range(6)}
_DENSE_WIDTH = {"dense_widths": {"dense_features": _DENSE}}

ARCHETYPES = {
    "dlrm": Archetype(
        make=lambda: DLRM(_bags(), _DENSE, [12, _DIM], [16, 1]), features=_BAGS, dense=_DENSE, loss=logits
    ),
    # MLPerf's DLRM-DCNv2 in small: multi-hot features of their own numbers of IDs, three cross layers of low rank.
    "dlrm_dcnv2": Archetype(
        make=lambda: DLRM_DCN(_bags(_MULTI_HOT), _DENSE, [16, 12, _DIM], [16, 12, 8, 1], 3, 4),
        features=_MULTI_HOT,
        dense=_DENSE,
        loss=logits,
    ),
    "deepfm": Archetype(make=lambda: SimpleDeepFMNN(_DENSE, _bags(), 12, 6), features=_BAGS, dense=_DENSE),
    "wide_and_deep": Archetype(
        make=lambda: crossing.WideAndDeep(_bags(dim=1, prefix="wide_"), _bags(), _DENSE),
        features=_BAGS,
        dense=_DENSE,
        loss=logits,
        options=_DENSE_WIDTH,
    ),
    "xdeepfm": Archetype(
        make=lambda: crossing.XDeepFM(_bags(), _DENSE), features=_BAGS, dense=_DENSE, options=_DENSE_WIDTH
    ),
    "masknet": Archetype(
        make=lambda: _built(factories.build_masknet, num_blocks=2, layer_sizes=[8, 6]),
        features=_BAGS,
        dense=_DENSE,
    ),
    "finalmlp": Archetype(
        make=lambda: _built(
            factories.build_finalmlp,
            item_features=["item", "genres"],
            stream_layer_sizes=[12, 8],
            num_heads=2,
        ),
        features=_BAGS,
        dense=_DENSE,
    ),
    "wukong": Archetype(
        make=lambda: _built(
            factories.build_wukong, interaction={"layers": 2, "vectors": 3, "rank": 2}, layer_sizes=[8]
        ),
        features=_BAGS,
        dense=_DENSE,
    ),
    "mmoe": Archetype(
        make=lambda: _built(
            zoo.build_mmoe, "click", "buy", num_experts=3, expert_layer_sizes=[8], tower_layer_sizes=[4]
        ),
        features=_BAGS,
        dense=_DENSE,
    ),
    "ple": Archetype(
        make=lambda: _built(
            factories.build_ple,
            "click",
            "buy",
            experts={"levels": 2, "number": 2},
            expert_layer_sizes=[8],
            tower_layer_sizes=[4],
        ),
        features=_BAGS,
        dense=_DENSE,
    ),
    "two_tower": Archetype(
        make=lambda: several.TwoTowers(_users(), _bags({name: _BAGS[name] for name in ("item", "genres")})),
        features=_BAGS,
        served=_retrieval,
        asked=("user",),
    ),
    "din": Archetype(
        make=_din, features={**_HISTORY, "user": _BAGS["user"]}, dense=_DENSE, options=_DENSE_WIDTH
    ),
    "bst": Archetype(
        make=lambda: sequences.BehaviorTransformer(_items(), _users(), _SIZE),
        features={**_HISTORY, "user": _BAGS["user"]},
    ),
    "sasrec": Archetype(make=lambda: sequences.SASRec(_items(), _SIZE), features=_HISTORY),
    "bert4rec": Archetype(
        make=lambda: sequences.BERT4Rec(
            EmbeddingCollection([sequence("items", _ITEMS, _DIM, ["history"])]), _SIZE, _ITEMS
        ),
        features={"history": _HISTORY["history"]},
        loss=next_item,
    ),
    "hstu": Archetype(
        make=lambda: sequences.HSTU(_items(), _SIZE),
        features={**_HISTORY, "times": (100_000, 0, _SIZE)},
        aligned={"times": "history"},
    ),
}
