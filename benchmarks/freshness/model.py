"""A model of two tables of raw IDs that learns from a stream of clicks, and the stream.

Shape letters: B clicks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DistributedModelParallel, KeyedJaggedTensor
from recsys.checkpoint.single_file import Checkpoint, build_model, empty_model
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.optim import EmbOptimType, in_backward_optimizer_filter
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from recsys.train.stepping.ranks import find_ranks, one_rank_plan, process_group, whole_state_dict
from recsys.training import Publisher

FEATURES = ("user", "item")
_FACTORY = "recsys.models.click:build_dlrm"
_FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.2}


class ClickStream:
    """Clicks of users on items whose favour changes, and of which new ones appear.

    Args:
        size: B, clicks of a step.
        num_users: users.
        num_items: items at the beginning.
    """

    def __init__(self, size: int, num_users: int = 500, num_items: int = 300) -> None:
        self._random = np.random.default_rng(0)
        self._size, self._num_users = size, num_users
        self._favour = self._random.normal(size=num_items)
        self._users = self._random.normal(size=num_users) * 0.5

    def minute(self) -> None:
        """Let favours change, and ten new items appear."""
        self._favour += self._random.normal(size=len(self._favour)) * 0.15
        self._favour = np.concatenate((self._favour, self._random.normal(size=10) * 1.5))

    def clicks(self) -> tuple[Tensor, Tensor]:
        """Draw clicks: IDs int64 ``[2, B]`` of users and items, and labels ``[B]``. Recent items are frequent."""
        users = self._random.integers(self._num_users, size=self._size)
        last = len(self._favour) - 1
        items = last - np.minimum(self._random.geometric(0.005, self._size), last)
        chances = 1 / (1 + np.exp(1 - self._favour[items] - self._users[users]))
        clicked = self._random.random(self._size) < chances
        return torch.from_numpy(np.stack((users, items))), torch.from_numpy(clicked).float()


class OnlineModel:
    """A model, its optimizers, and what it takes to publish it.

    Args:
        num_rows: of each table.
        dim: of its vectors.
    """

    def __init__(self, num_rows: int, dim: int) -> None:
        tables = [
            {
                "name": name,
                "num_embeddings": num_rows,
                "embedding_dim": dim,
                "feature_names": [name],
                "managed": {"eviction": "lru", "interval": 1},
            }
            for name in FEATURES
        ]
        schema = Schema(
            labels=(LabelColumn(name="click"),),
            dense=(),
            tables=tuple(
                TableSpec(name=name, num_embeddings=num_rows, feature_names=(name,)) for name in FEATURES
            ),
        )
        self._arguments: dict[str, Any] = {
            "tables": tables,
            "dense_in_features": 0,
            "dense_arch_layer_sizes": [dim],
            "over_arch_layer_sizes": [32, 1],
            "inputs": schema.to_json(),
        }
        torch.manual_seed(0)
        model = empty_model(_FACTORY, self._arguments)
        ranks = find_ranks("cpu")
        sharder = EmbeddingBagCollectionSharder(_FUSED)
        self.sharded = DistributedModelParallel(
            model, ranks.env(), ranks.device, one_rank_plan(model), [sharder]
        )
        dense = [parameter for _, parameter in in_backward_optimizer_filter(self.sharded.named_parameters())]
        self._optimizer = torch.optim.Adam(dense, lr=0.002)

    def learn(self, ids: Tensor, clicked: Tensor) -> None:
        """Learn from clicks: IDs int64 ``[2, B]``, labels ``[B]``."""
        self.sharded.train()
        lengths = torch.ones(ids.numel(), dtype=torch.int64)
        (score,) = self.sharded(KeyedJaggedTensor(list(FEATURES), ids.flatten(), lengths=lengths)).values()
        loss = functional.binary_cross_entropy(score, clicked)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def export(self, path: Path) -> Path:
        """Export what it has learned."""
        state = whole_state_dict(self.sharded)
        assert state is not None
        checkpoint = Checkpoint(factory=_FACTORY, arguments=self._arguments, state_dict=state)
        export_model(build_model(checkpoint), path, ExportConfig())
        return path

    def publisher(self, artifact: Path, destination: Path) -> Publisher:
        """Return what publishes deltas of it."""
        return Publisher(self.sharded, artifact, destination)


@contextmanager
def trained_online(num_rows: int = 4096, dim: int = 16) -> Iterator[OnlineModel]:
    """Yield a model, in a process group of one rank."""
    with process_group(find_ranks("cpu")):
        yield OnlineModel(num_rows, dim)
