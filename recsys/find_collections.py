"""Finding the collections of a model."""

from __future__ import annotations

from torch import nn

from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, FloatCollection


def find_collections(
    model: nn.Module,
    module_types: tuple[type[nn.Module], ...] = (EmbeddingBagCollection, EmbeddingCollection),
    error: type[ValueError] = ValueError,
) -> dict[str, FloatCollection]:
    """Return the collections of a model that have tables, by path; ``""`` if the model is a collection itself.

    Args:
        model: Any module.
        module_types: The kinds of collections to find.
        error: The error to raise.

    Raises:
        error: The model holds none.
    """
    found = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (EmbeddingBagCollection, EmbeddingCollection))
        and isinstance(module, module_types)
        and (module.embedding_bags if isinstance(module, EmbeddingBagCollection) else module.embeddings)
    }
    if not found:
        names = " or ".join(f"recsys.{kind.__name__}" for kind in module_types)
        raise error(
            f"model: {type(model).__name__} holds no {names} with tables, expected at least one{_instead(model)}"
        )
    return found


def _instead(model: nn.Module) -> str:
    """Return what to do with a model that has no collections."""
    for path, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            name = path.rpartition(".")[2] or "table"
            kind = type(module).__name__
            return (
                f": what looks IDs up. In place of {path!r}, a torch.nn.{kind}, take {kind}Collection(tables=["
                f"{kind}Config(name={name!r}, num_embeddings={module.num_embeddings}, "
                f"embedding_dim={module.embedding_dim}, feature_names=[{name!r}])]), whose forward takes a "
                "KeyedJaggedTensor; its weight is the old one under another name"
            )
    return (
        ": what looks IDs up. A model without tables has nothing to quantize or to shard: torch.export and any server "
        "of plain models do for it"
    )
