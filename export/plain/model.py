"""A plain model as one that holds our collections, and takes features and dense inputs.

Shape letters: B batch, D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from export.graph.modules import replace_modules
from export.plain.call import Call
from export.plain.plan import COMPUTED, POOLED, SEQUENCES, Plan, computed_name
from export.plain.recipe import Recipe
from export.plain.traced import MODEL
from recsys.artifact.graphs import attribute
from recsys.configs import EmbeddingBagConfig, EmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.quant import float_tables

# Of the argument that holds the features: the first that no dense input has.
_ARGUMENTS = ("features", "sparse_features", "keyed_features")


class PlainModel(nn.Module):
    """A plain model that takes features and dense inputs: its graph, in which collections look up.

    ``with_forward`` gives it a ``forward`` that names the inputs.

    Attributes:
        num_ids: The number of IDs that each bag of a feature must hold, for those that take no other number.
        dense_widths: The numbers of each dense input.
    """

    def __init__(self, recipe: Recipe, plans: Sequence[Plan]) -> None:
        super().__init__()
        self.recipe, plain, inputs = recipe, recipe.plain, recipe.inputs
        self.add_module(MODEL, _without(attribute(plain.root, MODEL), plans))
        for node in plain.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr" and not name.startswith(f"{MODEL}."):
                self.register_buffer(name, attribute(plain.root, name), persistent=False)
        pooled = [plan for plan in plans if plan.kind == POOLED]
        if pooled:
            made = EmbeddingBagCollection(_tables(EmbeddingBagConfig, pooled), device="meta")
            self.add_module(POOLED, _with_weights(made, pooled))
        of_dim: dict[int, list[Plan]] = {}
        for plan in plans:
            if plan.kind == SEQUENCES:
                of_dim.setdefault(plan.dim, []).append(plan)
            if plan.kind == COMPUTED:
                [part] = plan.parts
                config = EmbeddingConfig(
                    name=part.name,
                    num_embeddings=len(part.weight),
                    embedding_dim=plan.dim,
                    feature_names=[part.name],
                )
                one = _with_weights(EmbeddingCollection([config], device="meta"), [plan])
                self.add_module(computed_name(plan), one)
        for dim, some in of_dim.items():
            several = EmbeddingCollection(_tables(EmbeddingConfig, some), device="meta")
            self.add_module(f"{SEQUENCES}_{dim}", _with_weights(several, some))
        self.num_ids = {one.name: one.num_ids for one in inputs.features if not one.is_padded}
        self.dense_widths = {one.name: len(one.places) for one in inputs.dense}

    def run(self, dense: Mapping[str, Any], features: KeyedJaggedTensor | None) -> Any:
        """Return the outputs.

        Args:
            dense: The dense inputs by name, ``[B, width]``.
            features: The features.
        """
        return Call(self, self.recipe, dense, features).outputs()


def with_forward(model: PlainModel) -> PlainModel:
    """Return the model, whose class now has a ``forward`` that names its dense inputs and takes all features as one."""
    inputs = model.recipe.inputs
    dense = [one.name for one in inputs.dense]
    sparse = next(name for name in _ARGUMENTS if name not in dense) if inputs.features else None
    arguments = [
        *(f"{name}: Tensor" for name in dense),
        *([f"{sparse}: KeyedJaggedTensor"] if sparse else []),
    ]
    given = ", ".join(f"{name!r}: {name}" for name in dense)
    scope: dict[str, Any] = {"Tensor": Tensor, "KeyedJaggedTensor": KeyedJaggedTensor}
    exec(f"def forward(self, {', '.join(arguments)}):\n    return self.run({{{given}}}, {sparse})\n", scope)
    model.__class__ = type("PlainModel", (PlainModel,), {"forward": scope["forward"], "__module__": __name__})
    return model


def _tables(kind: Any, plans: Sequence[Plan]) -> list[Any]:
    found = []
    for plan in plans:
        for part in plan.parts:
            features = [
                one.feature.name
                for segments in plan.segments.values()
                for one in segments
                if one.part is part
            ]
            if features:
                pooling = {"pooling": plan.pooling} if kind is EmbeddingBagConfig else {}
                found.append(
                    kind(
                        name=part.name,
                        num_embeddings=len(part.weight),
                        embedding_dim=part.weight.shape[1],
                        feature_names=list(dict.fromkeys(features)),
                        **pooling,
                    )
                )
    return found


def _with_weights(collection: Any, plans: Sequence[Plan]) -> Any:
    tables = (
        collection.embedding_bags if isinstance(collection, EmbeddingBagCollection) else collection.embeddings
    )
    weights = {part.name: part.weight for plan in plans for part in plan.parts}
    for config in float_tables(collection):
        tables[config.name].weight = nn.Parameter(weights[config.name].float(), requires_grad=False)
    return collection


def _without(model: nn.Module, plans: Sequence[Plan]) -> nn.Module:
    """Return a copy of a model without the tables, wherever it refers to them."""
    weights = {id(attribute(model, plan.table.path)) for plan in plans}
    gone = {
        path: nn.Identity()
        for path, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and id(module.weight) in weights
    }
    new = replace_modules(model, gone)
    for module in new.modules():
        for name, value in list(module._parameters.items()):
            if id(value) in weights:
                del module._parameters[name]
    return new
