"""Whether quantization costs accuracy: the AUC of trained models before and after the export.

Shape letters: N number of examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.model import DENSE_LAYERS, EMBEDDING_DIM, OVER_LAYERS, export_and_load
from recsys.artifact.load import LoadedArtifact
from recsys.data.batches import batches
from recsys.data.examples import Dataset
from recsys.data.metrics import auc
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import ClickModel
from recsys.train.config import ModelConfig
from recsys.train.job import train
from recsys.train.sources import DEFAULTS, DataConfig, open_dataset

#: Maximum difference of an artifact's AUC to the float model's.
TOLERANCE = 0.0005
_BATCH_SIZE = 4096
_FLOAT = "float model"


@dataclass(frozen=True, kw_only=True)
class AucResult:
    """One data set.

    Attributes:
        data: name of the source.
        num_held_out_rows: N.
        by_model: AUC on the held-out examples, of the float model and of an artifact for each dense dtype.
    """

    data: str
    num_held_out_rows: int
    by_model: dict[str, float]

    @property
    def largest_difference(self) -> float:
        """Of an artifact's AUC to the float model's."""
        return max(abs(found - self.by_model[_FLOAT]) for found in self.by_model.values())

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "largest_difference": self.largest_difference, "tolerance": TOLERANCE}


def sources(quick: bool) -> list[DataConfig]:
    """Return the synthetic stream, and MovieLens-100k if it is in RECSYS_DATA_DIR or ../shared/data."""
    if quick:
        return [DataConfig(name="synthetic", limit_rows=20_000)]
    root = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("RECSYS_DATA_DIR") or root.parent / "shared" / "data")
    found = [DataConfig(name="synthetic")]
    if (folder / "ml-100k.inter").is_file():
        found.append(DataConfig(name="movielens", path=folder))
    return found


def compare_auc(source: DataConfig, folder: Path) -> AucResult:
    """Train a model with the layers of the speed comparison, export it, and measure all on held-out data."""
    dataset = open_dataset(source)
    config = ModelConfig(
        embedding_dim=EMBEDDING_DIM, dense_layers=DENSE_LAYERS[:-1], over_layers=OVER_LAYERS[:-1]
    )
    model, _ = train(dataset, config, DEFAULTS[source.name].train)
    found = {_FLOAT: _auc(dataset, _float_scores(model))}
    for dtype, artifact in export_and_load(model, folder / source.name).items():
        found[f"artifact, {dtype}"] = _auc(dataset, _artifact_scores(artifact))
    return AucResult(data=dataset.name, num_held_out_rows=dataset.num_held_out_rows, by_model=found)


Scorer = Callable[[Tensor, KeyedJaggedTensor], Tensor]


def _float_scores(model: ClickModel) -> Scorer:
    def scores(dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        with torch.inference_mode():
            probabilities: Tensor = model(dense, features)["score"]
        return probabilities

    return scores


def _artifact_scores(artifact: LoadedArtifact) -> Scorer:
    names = [feature.name for feature in artifact.signature.sparse]

    def scores(dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        ordered = features.permute([features.keys().index(name) for name in names])
        return artifact.forward(dense, ordered.lengths(), ordered.values())["score"]

    return scores


def _auc(dataset: Dataset, scorer: Scorer) -> float:
    scored = [(scorer(b.dense, b.kjt), b.labels[:, 0]) for b in batches(dataset.held_out(), _BATCH_SIZE)]
    scores, labels = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
    found = auc(scores, labels)
    if found is None:
        raise ValueError(
            f"{dataset.name}: the held-out examples are all clicks or all none; AUC is undefined"
        )
    return found
