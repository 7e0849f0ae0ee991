"""Models over a user's history, SASRec and HSTU, and their factory.

A model's score is either a product of two vectors, the user's (the latest state of the history and the user's other
features) and the candidate's, or that of layers over what the candidate finds in the history (HSTU for clicks).
Candidates do not change the history's states in either, so a server computes these once for all candidates of a
request.

Shape letters: B batch, C dense features, D embedding dimension, H longest history, L labels, N width of features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import (
    ClickModel,
    SequenceCollection,
    bag_collection,
    check_sizes,
    click_model,
    num_labels_of,
    schema_of,
    sequence_collection,
    split_item_table,
    transformed_width,
)
from recsys.models.dlrm import BagCollection, OverArch, SparseArch
from recsys.models.history import recent
from recsys.models.hstu import HSTUEncoder
from recsys.models.sasrec import SASRecEncoder

_OBJECTIVES = ("click", "next-item")
_ENCODERS = {"sasrec": SASRecEncoder, "hstu": HSTUEncoder}


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """The parts of a model over a history.

    Attributes:
        encoder: "sasrec" or "hstu".
        history: The feature of the history's IDs, the latest last.
        target: The feature of the candidate's ID, of the same table.
        max_history: H; of longer histories the last H IDs count.
        num_layers: Layers of the encoder.
        num_heads: Heads of its attention, a divisor of D.
        dropout: The share of numbers that training leaves out.
        objective: "click", or "next-item" for a model without labels.
        item_features: The items' sparse features beside the target; the others are the user's.
    """

    encoder: str
    history: str
    target: str
    max_history: int
    num_layers: int
    num_heads: int
    dropout: float
    objective: str
    item_features: Sequence[str]


class HistoryFeatures(nn.Module):
    """The inputs of a model over a history: the items' vectors, and those of the user's and the items' other features.

    Args:
        items: The table of history and target.
        bags: The tables of the other features; None if there are none.
        dense_width: Number of dense features after the transforms; they are the user's.
        config: Which feature is which.

    Attributes:
        user_width: N of the user's features.
        item_width: N of the items' other features.

    Raises:
        ValueError: An item feature is unknown.
    """

    def __init__(
        self,
        items: SequenceCollection,
        bags: BagCollection | None,
        dense_width: int,
        config: SequenceConfig,
    ) -> None:
        super().__init__()
        self.embedding_collection = items
        self.sparse_arch = None if bags is None else SparseArch(bags)
        self._history, self._target, self._max_history = config.history, config.target, config.max_history
        names = [] if self.sparse_arch is None else self.sparse_arch.sparse_feature_names
        item_features = config.item_features
        unknown = sorted(set(item_features) - set(names))
        if unknown:
            raise ValueError(
                f"item_features: got {unknown}, expected some of {names}: {config.target!r} is always the item's"
            )
        of_user = [name for name in names if name not in item_features]
        of_item = [name for name in names if name in item_features]
        dim = items.embedding_configs()[0].embedding_dim
        self._of_user, self._of_item = of_user, of_item
        self.user_width = dense_width + len(of_user) * dim
        self.item_width = len(of_item) * dim

    def forward(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Look up a batch.

        Returns:
            The history's last vectors ``[B, H, D]``, the oldest first, padded with zeros; their number ``[B]``, at most
            H; the candidates' vectors ``[B, D]``, zeros for one without an ID; the user's features and the items'
            other features, ``[B, N]``, None where there are none.
        """
        vectors = self.embedding_collection(sparse_features)
        history = vectors[self._history]
        user = [] if dense_features is None else [dense_features]
        item = []
        if self.sparse_arch is not None:
            # By name, so that a graph tells the user's from the items'.
            others = self.sparse_arch.embedding_bag_collection(sparse_features)
            user += [others[name] for name in self._of_user]
            item += [others[name] for name in self._of_item]
        return (
            recent(history, self._max_history),
            history.lengths().clamp(max=self._max_history),
            vectors[self._target].to_padded_dense(1).flatten(1),
            torch.cat(user, dim=1) if user else None,
            torch.cat(item, dim=1) if item else None,
        )


class StateModel(nn.Module):
    """The product of the user's vector and the candidate's.

    The user's vector is the history's latest state, and a linear layer of the user's other features; the candidate's is
    its row, and a linear layer of its other features.

    Args:
        features: The inputs.
        encoder: Maps a history to states.
        dim: D.
        has_bias: Whether a number is added to the product, which an order of candidates does not need.
    """

    def __init__(self, features: HistoryFeatures, encoder: nn.Module, dim: int, *, has_bias: bool) -> None:
        super().__init__()
        self.features = features
        self.encoder = encoder
        self.user_layer = nn.Linear(features.user_width, dim) if features.user_width else None
        self.item_layer = nn.Linear(features.item_width, dim) if features.item_width else None
        self.bias = nn.Parameter(torch.zeros(1)) if has_bias else None

    def reset_parameters(self) -> None:
        """Set the number that is added."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, 1]``."""
        history, lengths, item, of_user, of_item = self.features(dense_features, sparse_features)
        state = _backwards(self.encoder(history, lengths), lengths, 1).flatten(1)
        if self.user_layer is not None:
            state = state + self.user_layer(of_user)
        if self.item_layer is not None:
            item = item + self.item_layer(of_item)
        scores: Tensor = (state * item).sum(dim=1, keepdim=True)
        return scores if self.bias is None else scores + self.bias

    def vectors(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        """Return the user's vector at each place of the history, and vectors of what came after each, to learn from.

        Returns:
            The users' vectors ``[B, H, D]``, the latest first, and vectors of items ``[B, H, D]``: the candidate's,
            then the history's from the latest on. Items have no other features.
        """
        history, lengths, item, of_user, _ = self.features(dense_features, sparse_features)
        size = history.size(1)
        states = _backwards(self.encoder(history, lengths), lengths, size)
        if self.user_layer is not None:
            states = states + self.user_layer(of_user).unsqueeze(1)
        following = torch.cat((item.unsqueeze(1), _backwards(history, lengths, size)), dim=1)
        return states, following.narrow(1, 0, size)


def _backwards(places: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Return the vectors of the latest places, ``[B, size, D]``, the latest first; the first one's behind the oldest.

    Args:
        places: ``[B, H, D]``, the oldest first.
        lengths: Number of places of each history, ``[B]``, at most H; a history without any has the first one.
        size: How many are returned.
    """
    back = torch.arange(size, device=lengths.device)
    at = (lengths.unsqueeze(1) - 1 - back).clamp(min=0)
    return places.gather(1, at.unsqueeze(2).expand(-1, -1, places.shape[2]))


class TargetAwareModel(nn.Module):
    """Layers over what a candidate finds in the history, and all other features.

    Args:
        features: The inputs.
        encoder: Its ``attend`` maps candidates and histories to vectors.
        dim: D.
        over_layer_sizes: Sizes of the layers; the last one is L.
    """

    def __init__(
        self, features: HistoryFeatures, encoder: HSTUEncoder, dim: int, over_layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.features = features
        self.encoder = encoder
        self.over_arch = OverArch(dim + features.user_width + features.item_width, over_layer_sizes)

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``."""
        history, lengths, item, of_user, of_item = self.features(dense_features, sparse_features)
        found = self.encoder.attend(item, history, lengths)
        others = [one for one in (of_user, of_item) if one is not None]
        logits: Tensor = self.over_arch(torch.cat((*others, found), dim=1))
        return logits


def build_sequential(
    *,
    tables: Sequence[Mapping[str, Any]],
    dense_in_features: int,
    sequence: Mapping[str, Any],
    over_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a SASRec or an HSTU.

    Args:
        tables: As for ``recsys.models.click.build_dlrm``. One has the history and the target and no other feature; its
            rows are not pooled.
        dense_in_features: Number of dense features.
        sequence: The fields of ``SequenceConfig``.
        over_layer_sizes: HSTU for clicks: sizes of the layers before the logits.
        inputs: As for ``build_dlrm``; without labels for "next-item".

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    config = _sequence(sequence)
    schema = schema_of(inputs)
    is_next_item = config.objective == "next-item"
    attends = config.encoder == "hstu" and not is_next_item
    num_labels = 0 if is_next_item else num_labels_of(schema)
    if is_next_item and schema is not None and schema.labels:
        raise ValueError(
            f"inputs.labels: got {list(schema.label_names)}, expected none for next-item, which learns from the items"
        )
    if num_labels > 1 and not attends:
        raise ValueError(
            f"inputs.labels: got {num_labels}, expected one: the product of two vectors is one score"
        )
    if is_next_item and config.item_features:
        raise ValueError(
            f"sequence.item_features: got {list(config.item_features)}, expected none for next-item: the items of "
            "histories have their IDs alone"
        )
    of_items, others = split_item_table(tables, config.history, config.target)
    items = sequence_collection([of_items])
    (table,) = items.embedding_configs()
    dim = table.embedding_dim
    if dim % config.num_heads:
        raise ValueError(
            f"sequence.num_heads: got {config.num_heads}, expected a divisor of {dim}, the embedding_dim"
        )
    features = HistoryFeatures(
        items,
        bag_collection(others) if others else None,
        transformed_width(schema, dense_in_features),
        config,
    )
    encoder = _ENCODERS[config.encoder](
        dim, config.max_history, config.num_layers, config.num_heads, config.dropout
    )
    if attends:
        check_sizes("over_layer_sizes", over_layer_sizes)
        assert isinstance(encoder, HSTUEncoder)
        return click_model(TargetAwareModel(features, encoder, dim, [*over_layer_sizes, num_labels]), schema)
    return click_model(StateModel(features, encoder, dim, has_bias=not is_next_item), schema)


def _sequence(data: Mapping[str, Any]) -> SequenceConfig:
    names = [field.name for field in fields(SequenceConfig)]
    if not isinstance(data, Mapping) or sorted(data) != sorted(names):
        raise ValueError(f"sequence: got {str(data)[:200]}, expected an object with {names}")
    for name, choices in (("encoder", tuple(_ENCODERS)), ("objective", _OBJECTIVES)):
        if data[name] not in choices:
            raise ValueError(
                f"sequence.{name}: got {str(data[name])[:80]!r}, expected one of {', '.join(choices)}"
            )
    names_of_items = data["item_features"]
    if not isinstance(names_of_items, list | tuple) or not all(isinstance(n, str) for n in names_of_items):
        raise ValueError(f"sequence.item_features: got {str(names_of_items)[:80]}, expected a list of texts")
    for name in ("history", "target"):
        if not isinstance(data[name], str):
            raise ValueError(f"sequence.{name}: got {str(data[name])[:80]}, expected the name of a feature")
    for name in ("max_history", "num_layers", "num_heads"):
        check_sizes(f"sequence.{name}", [data[name]])
    dropout = data["dropout"]
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise ValueError(
            f"sequence.dropout: got {str(dropout)[:80]}, expected a share of at least 0 and below 1"
        )
    return SequenceConfig(**data)
