"""The configuration of a training, validated once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from recsys.train.best import BEST_METRICS
from recsys.train.schedules import Schedules

if TYPE_CHECKING:  # options and their defaults need no torch
    from recsys.data.examples import Dataset
    from recsys.data.next_items import NextItemColumns
    from recsys.inputs.schema import CrossSpec, TableSpec

MODELS = (
    *("dlrm", "dcn", "deepfm", "masknet", "finalmlp", "wukong", "din", "mmoe", "ple", "twotower"),
    *("sasrec", "hstu"),
)
#: What a model is trained for: the labels of a row, or the item that follows a history.
OBJECTIVES = ("click", "next-item")
#: What is minimized. "softmax" is that of two towers and next-item, for which "cross-entropy" is the same.
LOSSES = ("cross-entropy", "focal", "bpr", "softmax")
#: The items that an item is learned against: those of the batch, drawn ones, the batch's and evenly drawn ones.
NEGATIVES = ("in-batch", "uniform", "popularity", "mixed")
#: What ends runs of a sweep early: those that are worse than so much of earlier ones after as many epochs.
PRUNERS = ("none", "median", "quartile")
#: Models over the items of a history, which share a table with the target.
_OF_HISTORIES = ("din", "sasrec", "hstu")
_SEQUENTIAL = ("sasrec", "hstu")
_OF_VECTORS = (*_SEQUENTIAL, "twotower")
_FACTORIES = {
    "dlrm": "recsys.models.click:build_dlrm",
    "dcn": "recsys.models.zoo:build_dcn",
    "deepfm": "recsys.models.zoo:build_deepfm",
    "din": "recsys.models.zoo:build_din",
    "mmoe": "recsys.models.zoo:build_mmoe",
    "ple": "recsys.models.networks.factories:build_ple",
    "masknet": "recsys.models.networks.factories:build_masknet",
    "finalmlp": "recsys.models.networks.factories:build_finalmlp",
    "wukong": "recsys.models.networks.factories:build_wukong",
    "twotower": "recsys.models.zoo:build_two_tower",
    **dict.fromkeys(_SEQUENTIAL, "recsys.models.sequential:build_sequential"),
}
#: By torch's names for them.
MATMUL_PRECISIONS = {"float32": "highest", "bfloat16": "medium"}
#: Seconds between two deltas that a training publishes.
PUBLISH_EVERY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model and its sizes; each model uses those of its parts.

    Attributes:
        model: One of ``MODELS``.
        embedding_dim: D of every table.
        dense_layers: dlrm: sizes of the layers on the dense features; a last one of D is added.
        over_layers: Sizes of the layers before the logits: over the interactions (dlrm), the deep part (dcn, deepfm),
            over all vectors (din, hstu), the experts (mmoe, ple), the towers (twotower), the streams (finalmlp), a mask
            block and over all blocks (masknet), the machines and over all vectors (wukong).
        cross_layers: dcn: number of cross layers.
        cross_rank: dcn: the rank of their matrices; 0 for full rank.
        experts: mmoe: number of experts; ple: of each label, and of shared ones.
        extraction_levels: ple: levels of experts.
        mask_blocks: masknet: blocks.
        fusion_heads: finalmlp: heads of the streams' products; a divisor of the last of ``over_layers``.
        interaction_layers: wukong: layers over the vectors.
        interaction_vectors: wukong: vectors that a layer's machine gives, and its compression.
        interaction_rank: wukong: mixtures of the vectors that they are multiplied with.
        tower_layers: mmoe, ple: sizes of each label's layers before its logit.
        item_features: twotower, finalmlp, sasrec, hstu: the items' sparse features, beside the target.
        history: din, sasrec, hstu: the sparse feature of the user's items, the latest last.
        target: din, sasrec, hstu: the sparse feature of the item, of the same table.
        max_history: din, sasrec, hstu: The most IDs of a history; of longer ones the last IDs count.
        attention_layers: din: sizes of the layers before the score of an item of the history.
        attention_softmax: din: whether the scores of a history are normalized.
        encoder_layers: sasrec, hstu: layers over the history.
        heads: sasrec, hstu: heads of their attention; a divisor of D.
        dropout: sasrec, hstu: the share of numbers of the encoder that training leaves out.
        objective: One of ``OBJECTIVES``; "next-item" for sasrec and hstu alone.
        mapping_buckets: Parts of the mapping of each table of raw IDs, of which every rank holds as many; 1 for a copy
            of the whole mapping on every rank.
        admission_interval: Batches between two admissions of raw IDs to tables of raw IDs.
        learn_label_weights: Whether the losses of several labels are weighted by learned variances.
    """

    model: str = "dlrm"
    embedding_dim: int = 16
    dense_layers: tuple[int, ...] = (64,)
    over_layers: tuple[int, ...] = (64, 32)
    cross_layers: int = 3
    cross_rank: int = 0
    experts: int = 4
    extraction_levels: int = 2
    mask_blocks: int = 3
    fusion_heads: int = 2
    interaction_layers: int = 2
    interaction_vectors: int = 8
    interaction_rank: int = 8
    tower_layers: tuple[int, ...] = (32,)
    item_features: tuple[str, ...] = ()
    history: str = ""
    target: str = ""
    max_history: int = 50
    attention_layers: tuple[int, ...] = (32, 16)
    attention_softmax: bool = False
    encoder_layers: int = 2
    heads: int = 1
    dropout: float = 0.2
    objective: str = "click"
    mapping_buckets: int = 1
    admission_interval: int = 10
    learn_label_weights: bool = False

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model: got {self.model!r}, expected one of {', '.join(MODELS)}")
        stacks = (self.over_layers, self.tower_layers, self.attention_layers)
        sizes = (
            *(self.embedding_dim, self.max_history, self.encoder_layers, self.heads, self.mapping_buckets),
            *(self.extraction_levels, self.mask_blocks, self.fusion_heads, self.interaction_layers),
            *(self.interaction_vectors, self.interaction_rank),
            self.admission_interval,
            *self.dense_layers,
            *chain(*stacks),
        )
        if min(sizes) < 1 or not all(stacks):
            raise ValueError(
                f"model sizes: got {self}, expected sizes of at least 1, and one over layer, one tower layer and one "
                "attention layer"
            )
        if self.model == "twotower" and (not self.item_features or len(self.over_layers) < 2):
            raise ValueError(
                "item_features, over_layers: a twotower model needs the items' features and at least two layers"
            )
        if self.model == "masknet" and len(self.over_layers) < 2:
            raise ValueError(
                "over_layers: a masknet model needs a block's size, and one layer at least over all blocks"
            )
        if self.model == "finalmlp" and self.over_layers[-1] % self.fusion_heads:
            raise ValueError(
                f"fusion_heads: got {self.fusion_heads}, expected a divisor of {self.over_layers[-1]}, the last of "
                "over_layers"
            )
        if self.model in _OF_HISTORIES and not (self.history and self.target):
            raise ValueError(
                f"history, target: got {self.history!r} and {self.target!r}, expected two features of one table: a "
                f"{self.model} model needs both"
            )
        self._check_sequential()

    def _check_sequential(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: got {self.objective!r}, expected one of {', '.join(OBJECTIVES)}")
        if self.objective == "next-item" and self.model not in _SEQUENTIAL:
            raise ValueError(
                f"objective: got next-item with the model {self.model}, expected one of {', '.join(_SEQUENTIAL)}"
            )
        if self.objective == "next-item" and self.item_features:
            raise ValueError(
                f"item_features: got {', '.join(self.item_features)} with the objective next-item, expected none: the "
                "items of histories have their IDs alone"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, expected a share of at least 0 and below 1")
        if self.model in _SEQUENTIAL and self.embedding_dim % self.heads:
            raise ValueError(
                f"heads: got {self.heads}, expected a divisor of {self.embedding_dim}, the embedding_dim"
            )

    @property
    def factory(self) -> str:
        """The name of the factory in a checkpoint."""
        return _FACTORIES[self.model]

    @property
    def next_item(self) -> NextItemColumns | None:
        """What is learned with the objective next-item; None for labels."""
        if self.objective != "next-item":
            return None
        from recsys.data.next_items import NextItemColumns

        return NextItemColumns(history=self.history, target=self.target)

    def arguments(self, dataset: Dataset) -> dict[str, object]:
        """Return the factory's arguments for a model of the data set: plain data."""
        schema = dataset.schema
        if self.learn_label_weights:
            schema = replace(schema, label_weights="uncertainty")
        if schema.crosses and self.model in _OF_VECTORS:
            raise ValueError(
                f"schema.crosses: got {schema.crosses[0].name!r} with --model {self.model}, expected none: its vectors "
                "of users and items are computed apart; take another model"
            )
        for cross in schema.crosses:
            if self.history in cross.feature_names:
                raise ValueError(
                    f"schema.crosses: {cross.name!r} got the feature {self.history!r}, which is the model's history, "
                    "expected features of one value in a row"
                )
        return {
            "tables": [
                *(self._table(table) for table in dataset.tables),
                *(self._crossed_table(cross) for cross in schema.crosses),
            ],
            "dense_in_features": len(dataset.dense_names),
            **self._sizes(len(dataset.schema.labels)),
            "inputs": schema.to_json(),
        }

    def _sizes(self, num_labels: int) -> dict[str, object]:
        match self.model:
            case "dcn":
                return {
                    "num_cross_layers": self.cross_layers,
                    "cross_rank": self.cross_rank,
                    "deep_layer_sizes": list(self.over_layers),
                }
            case "deepfm":
                return {"deep_layer_sizes": list(self.over_layers)}
            case "din":
                return {
                    "attention": {
                        "history": self.history,
                        "target": self.target,
                        "max_history": self.max_history,
                        "layer_sizes": list(self.attention_layers),
                        "softmax": self.attention_softmax,
                    },
                    "over_layer_sizes": list(self.over_layers),
                }
            case "mmoe":
                return {
                    "num_experts": self.experts,
                    "expert_layer_sizes": list(self.over_layers),
                    "tower_layer_sizes": list(self.tower_layers),
                }
            case "ple":
                return {
                    "experts": {"levels": self.extraction_levels, "number": self.experts},
                    "expert_layer_sizes": list(self.over_layers),
                    "tower_layer_sizes": list(self.tower_layers),
                }
            case "masknet":
                return {"num_blocks": self.mask_blocks, "layer_sizes": list(self.over_layers)}
            case "finalmlp":
                return {
                    "item_features": list(self.item_features),
                    "stream_layer_sizes": list(self.over_layers),
                    "num_heads": self.fusion_heads,
                }
            case "wukong":
                return {
                    "interaction": {
                        "layers": self.interaction_layers,
                        "vectors": self.interaction_vectors,
                        "rank": self.interaction_rank,
                    },
                    "layer_sizes": list(self.over_layers),
                }
            case "sasrec" | "hstu":
                return {
                    "sequence": {
                        "encoder": self.model,
                        "history": self.history,
                        "target": self.target,
                        "max_history": self.max_history,
                        "num_layers": self.encoder_layers,
                        "num_heads": self.heads,
                        "dropout": self.dropout,
                        "objective": self.objective,
                        "item_features": list(self.item_features),
                    },
                    "over_layer_sizes": list(self.over_layers),
                }
            case "twotower":
                return {
                    "item_features": list(self.item_features),
                    "tower_layer_sizes": list(self.over_layers),
                }
        return {
            "dense_arch_layer_sizes": [*self.dense_layers, self.embedding_dim],
            "over_arch_layer_sizes": [*self.over_layers, num_labels],
        }

    def _crossed_table(self, cross: CrossSpec) -> dict[str, object]:
        return {
            "name": cross.name,
            "num_embeddings": cross.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "feature_names": [cross.name],
            "crossed": True,
        }

    def _table(self, table: TableSpec) -> dict[str, object]:
        managed: dict[str, object] = {}
        if table.ids == "vocabulary":
            managed = {"managed": {"eviction": "none"}}
        elif table.ids == "zero_collision":
            buckets = {"buckets": self.mapping_buckets} if self.mapping_buckets > 1 else {}
            if table.num_embeddings % self.mapping_buckets:
                raise ValueError(
                    f"mapping_buckets: got {self.mapping_buckets}, expected a divisor of the "
                    f"{table.num_embeddings} rows of table {table.name!r}"
                )
            managed = {
                "managed": {"eviction": "distance_lfu", "interval": self.admission_interval, **buckets}
            }
        return {
            "name": table.name,
            "num_embeddings": table.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "feature_names": list(table.feature_names),
            "pooling": table.pooling,
            **managed,
        }


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Schedules):
    """How to train.

    Attributes, beside those of ``Schedules``:
        epochs: Epochs over the training examples.
        batch_size: B.
        seed: The seed of the initialization and of the order of examples.
        optimizer: The optimizer of the dense layers, "adam" or "adagrad"; tables are trained with row-wise Adagrad.
        learning_rate: The learning rate of the dense layers.
        row_learning_rate: The learning rate of the tables.
        row_weight_decay: The weight decay of the tables' touched rows.
        freeze_dense: Train the tables alone.
        best_metric: The held-out metric of the epoch that is kept, one of ``BEST_METRICS``.
        patience: Stop after this many epochs in a row that are not better; None to never stop.
        loss: One of ``LOSSES``.
        positive_weight: The factor of the loss of rows of label 1.
        focal_gamma: The exponent of the focal loss.
        label_weights: The factor of each label's loss; empty for 1.
        negatives: One of ``NEGATIVES``; others than "in-batch" for next-item and for two towers' softmax.
        num_negatives: Items that are drawn for a batch, on each rank.
        gather_negatives: Whether an item is learned against those of all ranks, not of its own alone; with "bpr" of
            labels the rows.
        matmul_precision: The precision of the numbers that matrix products multiply, one of ``MATMUL_PRECISIONS``;
            sums are float32. "bfloat16" is faster where the device has instructions for it, and no different elsewhere.
    """

    epochs: int = 1
    batch_size: int = 512
    seed: int = 0
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    row_learning_rate: float = 0.05
    row_weight_decay: float = 0.0
    freeze_dense: bool = False
    best_metric: str = "loss"
    patience: int | None = None
    matmul_precision: str = "float32"
    loss: str = "cross-entropy"
    positive_weight: float = 1.0
    focal_gamma: float = 2.0
    label_weights: tuple[float, ...] = ()
    negatives: str = "in-batch"
    num_negatives: int = 256
    gather_negatives: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "adagrad"):
            raise ValueError(f"optimizer: got {self.optimizer!r}, expected 'adam' or 'adagrad'")
        if self.best_metric not in BEST_METRICS:
            raise ValueError(
                f"best_metric: got {self.best_metric!r}, expected one of {', '.join(BEST_METRICS)}"
            )
        if self.matmul_precision not in MATMUL_PRECISIONS:
            raise ValueError(
                f"matmul_precision: got {self.matmul_precision!r}, expected {' or '.join(MATMUL_PRECISIONS)}"
            )
        if self.patience is not None and (self.patience < 1 or self.best_metric == "last"):
            raise ValueError(
                f"patience: got {self.patience} with best_metric {self.best_metric!r}, expected at least 1, and a "
                "metric that says which epoch is better"
            )
        self._check_loss()
        for name in ("epochs", "batch_size", "num_negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.seed < 0:
            raise ValueError(f"seed: got {self.seed}, expected at least 0")
        for name in ("learning_rate", "row_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a number above 0")
        if not 0 <= self.row_weight_decay < math.inf:
            raise ValueError(f"row_weight_decay: got {self.row_weight_decay}, expected at least 0")
        self._check_schedules()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    def _check_loss(self) -> None:
        for name, known in (("loss", LOSSES), ("negatives", NEGATIVES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if not 0 < self.positive_weight < math.inf:
            raise ValueError(f"positive_weight: got {self.positive_weight}, expected a number above 0")
        if not 0 <= self.focal_gamma < math.inf:
            raise ValueError(f"focal_gamma: got {self.focal_gamma}, expected at least 0")
        if not all(0 < weight < math.inf for weight in self.label_weights):
            raise ValueError(f"label_weights: got {self.label_weights}, expected numbers above 0")
        if self.positive_weight != 1 and self.loss not in ("cross-entropy", "focal"):
            raise ValueError(
                f"positive_weight: got {self.positive_weight} with the loss {self.loss}, expected it with "
                "cross-entropy or focal"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run does besides training; none of it changes the model.

    Attributes:
        prefetch: Batches that are read ahead.
        log_every: Steps between two measurements of the training examples.
        example_rows: Held-out rows that are kept in the checkpoint, for exports and examples of requests; 0 for none.
        sketch_rows: Held-out rows of which a sketch is kept in the checkpoint, for servers that watch how requests
            differ from it; 0 for none.
    """

    prefetch: int = 4
    log_every: int = 500
    example_rows: int = 256
    sketch_rows: int = 10_000

    def __post_init__(self) -> None:
        if self.example_rows < 0:
            raise ValueError(f"example_rows: got {self.example_rows}, expected at least 0")
        if self.sketch_rows < 0:
            raise ValueError(f"sketch_rows: got {self.sketch_rows}, expected at least 0")
        for name in ("prefetch", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
