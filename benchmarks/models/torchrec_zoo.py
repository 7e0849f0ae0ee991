"""Models of TorchRec: its own classes as they are, and two written for it in the style of its examples.

Nothing here imports ``recsys``: each is what a person has who trains with TorchRec.

Shape letters: B batch, D embedding dim, L length of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchrec
from torch import Tensor, nn
from torch.nn import functional
from torchrec.models.deepfm import SimpleDeepFMNN, SimpleDeepFMNNWrapper
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection, DLRMTrain, DLRMWrapper
from torchrec.models.experimental.transformerdlrm import DLRM_Transformer

NUM_DENSE, _DIM, _NUM_ROWS = 13, 16, 1000
_FEATURES = tuple(f"f{i}" for i in range(8))
_SEED = 20260101


def _bags(features: tuple[str, ...] = _FEATURES, dim: int = _DIM) -> Any:
    tables = [
        torchrec.EmbeddingBagConfig(
            name=f"t_{name}", embedding_dim=dim, num_embeddings=_NUM_ROWS, feature_names=[name]
        )
        for name in features
    ]
    return torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))


class TwoTower(nn.Module):
    """A tower for the user and one for the item, over collections of their own; the score is their product."""

    def __init__(self) -> None:
        super().__init__()
        self.user_ebc, self.item_ebc = _bags(("user", "history")), _bags(("item",))
        self.user_layers = nn.Sequential(nn.Linear(2 * _DIM, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item_layers = nn.Sequential(nn.Linear(_DIM, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, features: torchrec.KeyedJaggedTensor) -> Tensor:
        """Score a batch: ``[B]``."""
        user = self.user_layers(
            torchrec.KeyedTensor.regroup([self.user_ebc(features)], [["user", "history"]])[0]
        )
        item = self.item_layers(self.item_ebc(features)["item"])
        scores: Tensor = (user * item).sum(dim=1)
        return scores


class Bert4Rec(nn.Module):
    """One bidirectional block of attention over a history; scores of all items at its end."""

    def __init__(self, length: int = 12, num_heads: int = 2) -> None:
        super().__init__()
        self._length, self._num_heads = length, num_heads
        table = torchrec.EmbeddingConfig(
            name="t_item", embedding_dim=_DIM, num_embeddings=_NUM_ROWS, feature_names=["item"]
        )
        self.ec = torchrec.EmbeddingCollection(tables=[table], device=torch.device("cpu"))
        self.positions = nn.Parameter(torch.randn(length, _DIM) / 8)
        self.norms = nn.ModuleList(nn.LayerNorm(_DIM) for _ in range(2))
        self.qkv, self.out = nn.Linear(_DIM, 3 * _DIM), nn.Linear(_DIM, _DIM)
        self.wide, self.narrow = nn.Linear(_DIM, 4 * _DIM), nn.Linear(4 * _DIM, _DIM)
        self.scores = nn.Linear(_DIM, 50)

    def forward(self, features: torchrec.KeyedJaggedTensor) -> Tensor:
        """Score items: ``[B, 50]``."""
        history: torchrec.JaggedTensor = self.ec(features)["item"]
        x = history.to_padded_dense(desired_length=self._length) + self.positions
        places = torch.arange(self._length, device=x.device)
        # The last place is always seen, so that an empty history has something to attend to.
        seen = (places < history.lengths().unsqueeze(1)) | (places == self._length - 1)
        x = x + self._attention(self.norms[0](x), seen)
        x = x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))
        scores: Tensor = self.scores(x[:, -1])
        return scores

    def _attention(self, x: Tensor, seen: Tensor) -> Tensor:
        """Attend to the places that are seen: ``[B, L, D]``."""
        split = self.qkv(x).reshape(x.size(0), self._length, 3, self._num_heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(query, key.transpose(-2, -1)) * (_DIM / self._num_heads) ** -0.5
        weights = scores.masked_fill(~seen[:, None, None, :], float("-inf")).softmax(dim=-1)
        found: Tensor = self.out(torch.matmul(weights, value).transpose(1, 2).flatten(2))
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what a person does to serve it.

    Attributes:
        make: The model.
        options: Options of ``recsys-export`` beyond ``--model``.
        part: The submodule that these options export; the whole model if it is empty.
        glue: Lines of code that had to be written or changed.
        refused: A part of the error, for a model that cannot be served; else empty.
        takes_batch: Whether ``forward`` takes TorchRec's ``ModelInput``.
    """

    make: Callable[[], nn.Module]
    options: tuple[str, ...] = ()
    part: str = ""
    glue: int = 0
    refused: str = ""
    takes_batch: bool = False


def _dlrm() -> nn.Module:
    model: nn.Module = DLRM(_bags(), NUM_DENSE, [32, _DIM], [64, 32, 1])
    return model


CASES: dict[str, Case] = {
    "DLRM": Case(make=_dlrm),
    "DLRM_DCN": Case(make=lambda: DLRM_DCN(_bags(), NUM_DENSE, [32, _DIM], [64, 32, 1], 2, 8)),
    "DLRM_Projection": Case(
        make=lambda: DLRM_Projection(_bags(), NUM_DENSE, [32, _DIM], [64, 32, 1], [4 * _DIM], [2 * _DIM])
    ),
    "DLRMTrain": Case(make=lambda: DLRMTrain(_dlrm()), options=("--submodule", "model"), part="model"),
    "DLRMWrapper": Case(
        make=lambda: DLRMWrapper(_bags(), NUM_DENSE, [32, _DIM], [64, 32, 1]), takes_batch=True
    ),
    "SimpleDeepFMNN": Case(make=lambda: SimpleDeepFMNN(NUM_DENSE, _bags(), 20, 5)),
    "SimpleDeepFMNNWrapper": Case(
        make=lambda: SimpleDeepFMNNWrapper(NUM_DENSE, _bags(), 20, 5), takes_batch=True
    ),
    "DLRM_Transformer": Case(
        make=lambda: DLRM_Transformer(
            _bags(), NUM_DENSE, [32, _DIM], [64, 32, 1], nhead=2, ntransformer_layers=1
        ),
        refused="depend",
    ),
    "two towers": Case(make=TwoTower),
    "BERT4Rec": Case(make=Bert4Rec),
}


def make(name: str) -> nn.Module:
    """Return the model of a case, with the same weights each time; a factory for ``recsys-export --model``."""
    torch.manual_seed(_SEED)
    model = CASES[name].make()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if ".embedding_bags." in path or ".embeddings." in path:
                weight.normal_(0.0, 0.3)
    return model.eval()
