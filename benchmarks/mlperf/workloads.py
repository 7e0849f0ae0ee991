"""MLPerf's two recommendation models, with samples of the shapes that its rules name.

The data sets are not public for download by a test, so that weights, inputs and labels are random: a label is drawn
with the probability that the float model gives. Its own AUC is thus about that of MLPerf's model, and an artifact that
computes something else loses some of it.

Shape letters: B pairs of a sample, H longest history, N number of IDs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.zoo import NUM_DENSE, OUTPUT, DlrmDcn
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.models.hstu import HSTUEncoder
from serve.client.packing import Context, build_request

#: Rows of the tables of DLRM-DCNv2 in MLPerf Inference v5.1: Criteo's terabyte, IDs hashed into at most 40 million.
DLRM_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
# A sample of MLPerf's DLRM has 100 to 700 pairs, 270 on average.
_FEWEST_PAIRS, _MOST_PAIRS, _MEAN_PAIRS = 100, 700, 270.06
# HSTU in DLRMv3.
_LAYERS, _HEADS, _WIDTH = 5, 4, 512
_TABLE_STD = 0.1
# Of logits: with these, labels drawn from the scores give an AUC of about .8, as MLPerf's model has.
_LOGIT_STD, _LOGIT_MEAN = 1.35, -1.0
# Samples whose logits set the last layer's scale.
_NUM_SCALING = 2


@dataclass(frozen=True)
class Sample:
    """One query: inputs for calls in this process, and the same as a request.

    Attributes:
        inputs: As the artifact's form takes them.
        request: A serialized ``PredictRequest``.
        num_pairs: B.
    """

    inputs: tuple[Tensor, ...]
    request: bytes
    num_pairs: int


class Workload(ABC):
    """A model and its samples.

    Attributes:
        name: MLPerf's.
        p99_ms: The bound of the Server scenario.
        is_ranking: Whether a sample has one context.
    """

    name: ClassVar[str]
    p99_ms: ClassVar[float]
    is_ranking: ClassVar[bool]

    @property
    @abstractmethod
    def scale(self) -> str:
        """What differs from MLPerf's size, for every figure."""

    @abstractmethod
    def num_products(self, num_pairs: float) -> float:
        """Return the multiplications of matrices for a sample of so many pairs."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Return the float model."""

    @abstractmethod
    def export(self, model: nn.Module, path: Path, linear_dtype: str) -> None:
        """Export it."""

    @abstractmethod
    def sample(self, index: int) -> Sample:
        """Return a sample; the same index gives the same one."""

    @abstractmethod
    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the float model's logits ``[B]``."""

    def scaled(self, model: nn.Module, last: nn.Linear) -> nn.Module:
        """Return the model with logits of a fixed mean and standard deviation.

        Args:
            model: The model.
            last: Its last layer.
        """
        with torch.inference_mode():
            found = torch.cat([self.logits(model, self.sample(-1 - i)) for i in range(_NUM_SCALING)])
        with torch.no_grad():
            factor = _LOGIT_STD / float(found.std())
            last.weight.mul_(factor)
            last.bias.copy_(factor * (last.bias - float(found.mean())) + _LOGIT_MEAN)
        return model


class DlrmDcnV2(Workload):
    """DLRM-DCNv2: 13 numbers and 26 tables of dimension 128, 214 IDs a pair, three cross layers of rank 512.

    Args:
        most_rows: Rows of the largest tables.
    """

    name = "dlrm-dcnv2"
    p99_ms = 60.0
    is_ranking = False

    def __init__(self, most_rows: int) -> None:
        self._rows = [min(rows, most_rows) for rows in DLRM_ROWS]

    @property
    def scale(self) -> str:
        """Rows of all tables."""
        return f"{sum(self._rows) / 1e6:.2f} of {sum(DLRM_ROWS) / 1e6:.2f} million rows"

    def num_products(self, num_pairs: float) -> float:
        """Return the multiplications of matrices for a sample of so many pairs."""
        return 16.03e6 * num_pairs

    def build(self) -> nn.Module:
        """Return the float model."""
        torch.manual_seed(0)
        model = DlrmDcn(recsys, self._rows)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".embedding" in name:
                    parameter.normal_(std=_TABLE_STD)
        last = model.over[-1]
        assert isinstance(last, nn.Linear)
        return self.scaled(model.eval(), last)

    def export(self, model: nn.Module, path: Path, linear_dtype: str) -> None:
        """Export it."""
        export_model(model, path, ExportConfig(dense_widths={"dense": NUM_DENSE}, linear_dtype=linear_dtype))

    def sample(self, index: int) -> Sample:
        """Return a sample of 100 to 700 pairs."""
        rng = np.random.default_rng(abs(2 * index + (index < 0)))
        share = (_MEAN_PAIRS - _FEWEST_PAIRS) / (_MOST_PAIRS - _FEWEST_PAIRS)
        # A beta distribution of this mean: many small samples, few of 700.
        size = _FEWEST_PAIRS + round((_MOST_PAIRS - _FEWEST_PAIRS) * rng.beta(1.0, 1.0 / share - 1.0))
        dense = rng.standard_normal((size, NUM_DENSE), dtype=np.float32)
        ids = [
            rng.integers(0, rows, (size, count))
            for rows, count in zip(self._rows, DlrmDcn.ids_per_feature, strict=True)
        ]
        lengths = torch.tensor(DlrmDcn.ids_per_feature).repeat_interleave(size)
        values = torch.from_numpy(np.concatenate([part.ravel() for part in ids]))
        request = build_request({"dense": dense}, dict(zip(DlrmDcn.features, ids, strict=True)))
        return Sample((torch.from_numpy(dense), lengths, values), request.SerializeToString(), size)

    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the float model's logits ``[B]``."""
        dense, lengths, values = sample.inputs
        jagged = recsys.KeyedJaggedTensor(keys=list(DlrmDcn.features), values=values, lengths=lengths)
        scores: Tensor = model(dense, jagged)[OUTPUT]
        return torch.logit(scores, 1e-7)


class _Generative(nn.Module):
    """HSTU over a history, to which each candidate attends."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.size = size
        table = recsys.EmbeddingConfig(
            name="items",
            embedding_dim=_WIDTH,
            num_embeddings=num_rows,
            feature_names=["history", "item"],
        )
        self.items = recsys.EmbeddingCollection(tables=[table], device=torch.device("cpu"))
        self.encoder = HSTUEncoder(_WIDTH, size, _LAYERS, _HEADS, dropout=0.0)
        self.over = nn.Linear(_WIDTH, 1)

    def forward(self, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score candidates."""
        found = self.items(features)
        history = found["history"].to_padded_dense(self.size)
        item = found["item"].to_padded_dense(1).squeeze(1)
        state = self.encoder.attend(item, history, found["history"].lengths())
        return {OUTPUT: torch.sigmoid(self.over(state).squeeze(1))}


class Dlrmv3(Workload):
    """DLRMv3: HSTU of 5 layers, 4 heads and width 512 over a history, for the candidates of a sample.

    Args:
        num_rows: Rows of the items' table.
        num_candidates: B; MLPerf has 2 048.
        size: H; MLPerf has 16 384.
    """

    name = "dlrmv3"
    p99_ms = 80.0
    is_ranking = True

    def __init__(self, num_rows: int, num_candidates: int, size: int) -> None:
        self._num_rows, self._num_candidates, self._size = num_rows, num_candidates, size

    @property
    def scale(self) -> str:
        """Candidates, histories and rows."""
        return (
            f"{self._num_candidates} of 2048 candidates, histories of {self._size} of 16384, "
            f"{self._num_rows / 1e6:.2f} million rows"
        )

    def num_products(self, num_pairs: float) -> float:
        """Return the multiplications of matrices for a sample of so many pairs."""
        width, size = _WIDTH, self._size
        candidate = _LAYERS * (5 * width * width + 2 * width * size)
        # All layers have parts of each place of the history; the last has no next state.
        history = size * (_LAYERS * 4 * width * width + (_LAYERS - 1) * (width * width + 2 * width * size))
        return float(num_pairs * candidate + history)

    def build(self) -> nn.Module:
        """Return the float model."""
        torch.manual_seed(0)
        model = _Generative(self._num_rows, self._size)
        with torch.no_grad():
            for parameter in model.items.parameters():
                parameter.normal_(std=_TABLE_STD)
        return self.scaled(model.eval(), model.over)

    def export(self, model: nn.Module, path: Path, linear_dtype: str) -> None:
        """Export it, with the history as the context."""
        export_model(model, path, ExportConfig(context=("history",), linear_dtype=linear_dtype))

    def sample(self, index: int) -> Sample:
        """Return a sample with a full history."""
        rng = np.random.default_rng(abs(2 * index + (index < 0)))
        history = rng.integers(0, self._num_rows, (1, self._size))
        items = rng.integers(0, self._num_rows, self._num_candidates)
        request = build_request({}, {"item": items}, context=Context(sparse={"history": history}))
        inputs = (
            torch.tensor([self._size]),
            torch.from_numpy(history[0]),
            torch.ones(len(items), dtype=torch.int64),
            torch.from_numpy(items),
            torch.zeros(len(items), dtype=torch.int64),
        )
        return Sample(inputs, request.SerializeToString(), len(items))

    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the float model's logits ``[B]``."""
        assert isinstance(model, _Generative)
        length, history, _, items, _ = sample.inputs
        (table,) = model.items.parameters()
        # One history for all candidates, as the products of matrices broadcast it.
        state = model.encoder.attend(table[items], table[history].unsqueeze(0), length)
        logits: Tensor = model.over(state).squeeze(1)
        return logits
