"""Other models of the speed comparison: each a module that takes our collections or TorchRec's alike.

Shape letters: B batch, D embedding dim, F features, N number of IDs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Dict  # noqa: UP035

import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.peer import TensorDict
from benchmarks.models.sequences import Behavior, History, Pointwise, SelfAttentive
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.kernels import operators
from recsys.scripting import torchscript

OUTPUT = "score"
NUM_DENSE = 13
#: IDs per feature in MLPerf's multi-hot Criteo.
_MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
_HISTORY = 20
_TABLE_STD = 0.1


def layers(sizes: Sequence[int], *, ends_in_relu: bool) -> nn.Sequential:
    """Return linear layers of these sizes, with ReLUs between them."""
    made: list[nn.Module] = []
    for i in range(1, len(sizes)):
        made.append(nn.Linear(sizes[i - 1], sizes[i]))
        if i + 1 < len(sizes) or ends_in_relu:
            made.append(nn.ReLU())
    return nn.Sequential(*made)


class DlrmDcn(nn.Module):
    """MLPerf's DLRM with low-rank cross layers (DCNv2) in place of the interaction.

    Args:
        library: ``recsys`` or ``torchrec``: what collections come from.
        num_rows: Rows of each table, or of all.
    """

    features = tuple(f"f{i}" for i in range(26))
    ids_per_feature = _MULTI_HOT
    fewest_ids = _MULTI_HOT

    def __init__(self, library: ModuleType, num_rows: int | Sequence[int]) -> None:
        super().__init__()
        sizes = [num_rows] * len(self.features) if isinstance(num_rows, int) else num_rows
        dim, rank, num_layers = 128, 512, 3
        width = (len(self.features) + 1) * dim
        self.sparse = library.EmbeddingBagCollection(
            tables=[
                library.EmbeddingBagConfig(
                    name=f"t_{name}", embedding_dim=dim, num_embeddings=rows, feature_names=[name]
                )
                for name, rows in zip(self.features, sizes, strict=True)
            ],
            device=torch.device("cpu"),
        )
        self.bottom = layers([NUM_DENSE, 512, 256, dim], ends_in_relu=True)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(num_layers))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(num_layers))
        self.over = layers([width, 1024, 1024, 512, 256, 1], ends_in_relu=False)

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        first = torch.cat((self.bottom(dense), self.sparse(features).values()), dim=1)
        crossed = first
        for down, up in zip(self.down, self.up, strict=True):
            crossed = first * up(down(crossed)) + crossed
        return {OUTPUT: torch.sigmoid(self.over(crossed)).squeeze(1)}


class InterestNetwork(nn.Module):
    """A network that attends over a history of items, as DIN does.

    Args:
        library: ``recsys`` or ``torchrec``: what collections come from.
        num_rows: Rows of each table.
        size: The longest history.
    """

    features = ("history", "item", *(f"user_{i}" for i in range(6)))
    ids_per_feature = (_HISTORY, 1, 1, 1, 1, 1, 1, 1)
    fewest_ids = (1,) * 8

    def __init__(self, library: ModuleType, num_rows: int, size: int = _HISTORY) -> None:
        super().__init__()
        self.size = size
        dim = 64
        self.items = library.EmbeddingCollection(
            tables=[
                library.EmbeddingConfig(
                    name="goods",
                    embedding_dim=dim,
                    num_embeddings=num_rows,
                    feature_names=["history", "item"],
                )
            ],
            device=torch.device("cpu"),
        )
        self.users = library.EmbeddingBagCollection(
            tables=[
                library.EmbeddingBagConfig(
                    name=f"t_{name}", embedding_dim=dim, num_embeddings=num_rows, feature_names=[name]
                )
                for name in self.features[2:]
            ],
            device=torch.device("cpu"),
        )
        self.attention = layers([4 * dim, 80, 40, 1], ends_in_relu=False)
        self.over = layers([NUM_DENSE + 8 * dim, 200, 80, 1], ends_in_relu=False)

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch; of a history the first IDs count."""
        found = self.items(features)
        history = found["history"].to_padded_dense(self.size)
        item = found["item"].to_padded_dense(1).squeeze(1)
        targets = item.unsqueeze(1).expand(-1, self.size, -1)
        # Vectors of zeros behind the end of a history add nothing.
        matches = self.attention(torch.cat((history, targets, history - targets, history * targets), dim=2))
        interest = (matches * history).sum(dim=1)
        users = self.users(features).values()
        return {OUTPUT: torch.sigmoid(self.over(torch.cat((dense, users, item, interest), dim=1))).squeeze(1)}


MODELS: dict[str, type[DlrmDcn | InterestNetwork | History]] = {
    "DCNv2": DlrmDcn,
    "DIN-like": InterestNetwork,
    "SASRec-like": SelfAttentive,
    "BST-like": Behavior,
    "HSTU-like": Pointwise,
}


@dataclass(frozen=True)
class ZooRequest:
    """One batch as plain tensors, as ``benchmarks.models.dlrm.Request``."""

    dense: Tensor
    lengths: Tensor
    values: Tensor


class _PeerInputs(nn.Module):
    """TorchRec's model behind the inputs that a server has: a dict of plain tensors."""

    def __init__(self, model: nn.Module, keys: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._keys = list(keys)
        self._jagged: Any = import_module("torchrec").KeyedJaggedTensor

    def forward(self, batch: TensorDict) -> dict[str, Tensor]:
        jagged = self._jagged(keys=self._keys, values=batch["values"], lengths=batch["lengths"], weights=None)
        scores: dict[str, Tensor] = self.model(batch["dense"], jagged)
        return scores

    # TorchScript reads types, not their names.
    forward.__annotations__.update({"batch": Dict[str, Tensor], "return": Dict[str, Tensor]})  # noqa: UP006


def build(name: str, num_rows: int) -> nn.Module:
    """Return a model of ours by its name in ``MODELS``, with random weights."""
    torch.manual_seed(0)
    model = MODELS[name](recsys, num_rows)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".embedding" in parameter_name:
                parameter.normal_(std=_TABLE_STD)
    return model.eval()


def peer(name: str, num_rows: int, model: nn.Module) -> Callable[[TensorDict], TensorDict]:
    """Return TorchRec's model with the same weights, quantized to INT8 and scripted."""
    theirs = MODELS[name](import_module("torchrec"), num_rows)
    theirs.load_state_dict(model.state_dict())
    return script_peer(theirs, theirs.features, _as_dict(requests(name, 1, num_rows, num_batches=1)[0]))


def script_peer(
    theirs: nn.Module, features: Sequence[str], sample: TensorDict
) -> Callable[[TensorDict], TensorDict]:
    """Return a model over TorchRec's collections, quantized to INT8 and scripted.

    Args:
        theirs: The model.
        features: Its features, in the order of the requests.
        sample: A request.
    """
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    quantize = import_module("torchrec.inference.modules").quantize_inference_model
    tracer = import_module("torchrec.fx.tracer").Tracer(
        leaf_modules=["IntNBitTableBatchedEmbeddingBagsCodegen"]
    )
    quantized = quantize(_PeerInputs(theirs.eval(), features)).requires_grad_(False)
    with torch.inference_mode():
        quantized(sample)
    return torchscript.script(torch.fx.GraphModule(quantized, tracer.trace(quantized)))


def export_and_load(name: str, model: nn.Module, folder: Path) -> dict[str, LoadedArtifact]:
    """Return an artifact for each dtype of linear layers, with the native kernels."""
    loaded = {}
    for dtype in () if operators.why_missing() else operators.LINEAR_DTYPES:
        path = folder / f"{name}-{dtype}"
        config = ExportConfig(linear_dtype=dtype, dense_widths={"dense": NUM_DENSE})
        export_model(model, path, config)
        loaded[f"own {dtype}"] = load_artifact(path)
    return loaded


def requests(
    name: str, batch_size: int, num_rows: int, num_batches: int = 64, *, is_full: bool = False
) -> list[ZooRequest]:
    """Return distinct batches of a model, with uniform IDs.

    Args:
        name: That of the model.
        batch_size: Rows of a batch.
        num_rows: Rows of each table.
        num_batches: How many.
        is_full: Whether all histories have the most items, not 1 to so many.
    """
    generator = torch.Generator().manual_seed(1)
    of_model = MODELS[name]
    found = []
    for _ in range(num_batches):
        lengths = torch.cat(
            [
                torch.randint(most if is_full else least, most + 1, (batch_size,), generator=generator)
                for least, most in zip(of_model.fewest_ids, of_model.ids_per_feature, strict=True)
            ]
        )
        found.append(
            ZooRequest(
                dense=torch.randn(batch_size, NUM_DENSE, generator=generator),
                lengths=lengths,
                values=torch.randint(0, num_rows, (int(lengths.sum()),), generator=generator),
            )
        )
    return found


def peer_inputs(batches: Sequence[ZooRequest]) -> list[tuple[TensorDict]]:
    """Return the same tensors as TorchRec's model takes them."""
    return [(_as_dict(batch),) for batch in batches]


def _as_dict(batch: ZooRequest) -> TensorDict:
    return {"dense": batch.dense, "lengths": batch.lengths, "values": batch.values}


def check_agreement(
    peer_model: Callable[[TensorDict], TensorDict],
    artifacts: Mapping[str, LoadedArtifact],
    batch: ZooRequest,
) -> dict[str, float]:
    """Return the largest difference of each artifact's scores to the peer's."""
    with torch.inference_mode():
        expected = peer_model(_as_dict(batch))[OUTPUT]
    return {
        name: float(
            (artifact.forward(batch.dense, batch.lengths, batch.values)[OUTPUT] - expected).abs().max()
        )
        for name, artifact in artifacts.items()
    }
