"""Python's own functions over traced values, layers that compute their weights, and references between modules."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.errors import ExportError
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted

WITHOUT_GRADIENTS = pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 30, 8, ["g"])])
        self.over = nn.Linear(16, 4)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.over(self.around(self.ebc(features).values()))
        return found

    def around(self, x: Tensor) -> Tensor:
        return x


class StarShape(Base):
    def around(self, x: Tensor) -> Tensor:
        parts = x.view(*x.shape[:1], 2, 8)
        return parts.reshape(*(parts.size()[:-2] + (16,))).view(*x.shape)  # noqa: RUF005 (as RecBole writes it)


class ListsOfParts(Base):
    def around(self, x: Tensor) -> Tensor:
        a, b = list(x.chunk(2, dim=1))
        c, d = tuple(x.split(8, 1))
        pairs = itertools.combinations(x.split(4, dim=1), 2)
        products = [(u * v).sum(1, keepdim=True) for u, v in pairs]
        reverse = list(reversed(x.unbind(1)))
        return (
            torch.cat([a * d, b - c], dim=1) + torch.cat(products, 1).sum(1, True) + torch.stack(reverse, 1)
        )


class SortedAndZipped(Base):
    def around(self, x: Tensor) -> Tensor:
        parts = dict(enumerate(x.split(4, dim=1)))
        twice = [one + other for one, other in zip(*[x.chunk(4, 1), x.chunk(4, 1)], strict=True)]
        return torch.cat([parts[key] for key in sorted(parts)], dim=1) + torch.cat(twice, dim=1)


def _count(x: Tensor) -> int:
    return len(x[0])


class LenElsewhere(Base):
    def around(self, x: Tensor) -> Tensor:
        return x / functools.reduce(lambda a, b: a * b, [len(x.shape), _count(x), len(x.chunk(2, 1))])


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


class MadeInForward(Base):
    def around(self, x: Tensor) -> Tensor:
        y: Tensor = nn.Softmax(dim=1)(x) + Pool()(x) + nn.LayerNorm(16)(x)
        return nn.Sequential(nn.ReLU(), Pool())(y) + nn.CosineSimilarity()(x, y).unsqueeze(1) * x


class LayersOfTracedSizes(Base):
    def around(self, x: Tensor) -> Tensor:
        y = nn.LayerNorm(x.size(-1))(x) + nn.LayerNorm(x.shape[1:], elementwise_affine=False)(x)
        y = y + nn.LayerNorm([*x.shape[1:]])(x) + nn.LayerNorm(normalized_shape=x.shape[-1])(x)
        y = nn.Softmax(dim=x.dim() - 1)(y) + nn.Hardtanh(-x.size(-1), float(x.shape[-1]))(y)
        parts = nn.Unflatten(1, (x.size(1) // 8, 8))(y)
        y = nn.GroupNorm(parts.size(1), parts.shape[1])(parts).flatten(1) + nn.RMSNorm(x.size(1))(x)
        weighted: Tensor = Scaled(x.size(1))(
            nn.AvgPool1d(x.size(1) // 8)(y.unsqueeze(1)).squeeze(1).repeat(1, 2)
        )
        return weighted


class Scaled(nn.Module):
    """A layer of the user's that makes one of torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x) * 2
        return found


class LayerOfOpenSize(Base):
    def around(self, x: Tensor) -> Tensor:
        found: Tensor = nn.LayerNorm(x.size(0))(x.T).T
        return found


class NumpyConstants(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.linspace(0.5, 1.5, 16, dtype=np.float32)
        self.factor = np.float32(0.5)

    def around(self, x: Tensor) -> Tensor:
        y = x * x.new_tensor(self.scale) + x.new_tensor([1.0, 2.0] * 8) + torch.from_numpy(self.scale)
        z = torch.tensor(self.scale, dtype=x.dtype, device=x.device) * torch.as_tensor(3, dtype=x.dtype)
        return (y + z) * self.factor + self.factor * x + x.new_tensor(self.scale.mean())


class NumpyOperators(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.linspace(0.5, 1.5, 16, dtype=np.float32)

    def around(self, x: Tensor) -> Tensor:
        return x * self.scale + self.scale.max() * x


class Finfo(Base):
    def around(self, x: Tensor) -> Tensor:
        masked = x.masked_fill(x < 0.1, torch.finfo(x.dtype).min).softmax(dim=1)
        return masked + torch.finfo(x.dtype).eps + torch.iinfo(x.long().dtype).bits


class WholeNumbers(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Dropout(0), nn.LeakyReLU(1), nn.ELU(1), nn.Hardtanh(-1, 1), nn.Threshold(0, 0), nn.CELU(2)),
            *(
                nn.LayerNorm(16, 1),
                nn.Softplus(1, 20),
                nn.AlphaDropout(0),
                nn.Dropout(0, True),
                nn.Hardshrink(0),
            ),
        )

    def around(self, x: Tensor) -> Tensor:
        y = (
            torch.nan_to_num(x, 0)
            + x.nan_to_num(nan=1)
            + functional.pairwise_distance(x, x * 2, 2).unsqueeze(1)
        )
        y = (
            y
            + torch.dropout(y, 0, False)
            + torch.quantile(y, 1, dim=1).unsqueeze(1)
            + functional.dropout(x, 0)
        )
        found: Tensor = self.layers(y) + functional.leaky_relu(y, 1) + functional.elu(y, 1)
        return found


class SizesOfConstants(Base):
    """Methods of constants that take the number of rows."""

    def around(self, x: Tensor) -> Tensor:
        num_rows = x.size(0)
        y = torch.arange(16).expand(num_rows, 16) + torch.ones(1, 16).repeat(num_rows, 1)
        y = y + torch.arange(16.0).expand(size=(num_rows, -1)) + torch.ones(16).new_zeros((num_rows, 16))
        y = (
            y
            + torch.ones(1).new_full([num_rows, 1], 3)
            + torch.zeros(2, 8).reshape(1, -1).tile((num_rows, 1))
        )
        return x * y + torch.mean(x, dim=1, keepdim=True, out=None)


class AttentionWithoutDropout(Base):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.gru = nn.GRU(8, 8, 2, batch_first=True, dropout=0)

    def around(self, x: Tensor) -> Tensor:
        rows = x.view(-1, 2, 8)
        found: Tensor = (self.encoder(rows) + self.gru(rows)[0]).flatten(1)
        return found


class BoundMethods(Base):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)
        self.act: Any = self._act
        self.more: Any = lambda x: self.gate(x) + 1
        self.partly: Any = functools.partial(self._act, by=2.0)
        self.by_name: dict[str, Any] = {"act": self._act, "gate": self.gate}
        self.listed = [self.gate, nn.Linear(16, 16)]
        self.register_forward_hook(self._twice)

    def _act(self, x: Tensor, by: float = 1.0) -> Tensor:
        found: Tensor = x * self.gate(x) * by
        return found

    def _twice(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        found: Tensor = output * 2 + self.gate.bias.sum()
        return found

    def around(self, x: Tensor) -> Tensor:
        found: Tensor = self.act(x) + self.more(x) + self.partly(x) + self.by_name["act"](x)
        return found + self.by_name["gate"](x) + self.listed[0](x) + self.listed[1](x)


class LookupInAFunction(Base):
    """The lookup itself stands behind a lambda."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = lambda features: self.ebc(features).values()

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.over(self.rows(features))
        return found


class Scripted(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU()))

    def around(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found


class Parametrized(Base):
    """Each kind of weights that layers compute."""

    def __init__(self) -> None:
        super().__init__()
        self.over = parametrizations.weight_norm(nn.Linear(16, 4))
        self.rotate = parametrizations.orthogonal(nn.Linear(16, 16, bias=False))
        self.bound = parametrizations.spectral_norm(nn.Linear(16, 16))
        parametrize.register_parametrization(self.bound, "bias", _Positive())
        self.old = nn.utils.spectral_norm(nn.Linear(16, 16))
        self.cut = prune.l1_unstructured(nn.Linear(16, 16), "weight", amount=0.5)
        prune.random_unstructured(self.cut, "bias", amount=0.5)

    def around(self, x: Tensor) -> Tensor:
        found: Tensor = self.rotate(x) + self.bound(x) + self.old(x) + self.cut(x)
        return found


class _Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class OldWeightNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.over = nn.utils.weight_norm(nn.Linear(16, 4))


class OwnLayerParametrized(Base):
    """A layer of the model's own under weight norm, with a layer within."""

    def __init__(self) -> None:
        super().__init__()
        self.own = parametrizations.weight_norm(_Own(), "matrix")

    def around(self, x: Tensor) -> Tensor:
        found: Tensor = self.own(x)
        return found


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 16))
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x @ self.matrix)
        return found


@pytest.mark.parametrize(
    "make",
    [
        *(StarShape, ListsOfParts, SortedAndZipped, LenElsewhere, MadeInForward, LayersOfTracedSizes),
        *(NumpyConstants,),
        *(SizesOfConstants, AttentionWithoutDropout),
        *(NumpyOperators, Finfo, WholeNumbers, BoundMethods, LookupInAFunction, Scripted, Parametrized),
        *(pytest.param(OldWeightNorm, marks=WITHOUT_GRADIENTS), OwnLayerParametrized),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
def test_python_code_around_lookups(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    model = make()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, artifact = exported(model, tmp_path / "artifact", data_type=DataType.FP32)
    # The model is as it was, and trains on.
    assert model.training
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    signature = artifact.manifest.signature
    batch = batch_of(signature, 7)
    assert_close(artifact.forward(*batch.inputs()), predicted(model.eval(), arguments(signature, batch)))


def test_dtypes_follow_the_dense_dtype(tmp_path: Path) -> None:
    _, artifact = exported(Finfo(), tmp_path / "artifact", dense_dtype="bfloat16")
    batch = batch_of(artifact.manifest.signature, 3)
    assert all(output.isfinite().all() for output in artifact.forward(*batch.inputs()).values())


class _Held:
    """Holds a module, and is none."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module


class HiddenLayer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.held = _Held(self.over)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.held.module(self.ebc(features).values())
        return found


def test_a_layer_behind_another_object_is_traced_through(tmp_path: Path) -> None:
    model = HiddenLayer().eval()
    _, artifact = exported(model, tmp_path / "artifact", data_type=DataType.FP32)
    batch = batch_of(artifact.manifest.signature, 7)
    call = arguments(artifact.manifest.signature, batch)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, call))


class HiddenCollection(Base):
    def __init__(self) -> None:
        super().__init__()
        self.held = _Held(self.ebc)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.over(self.held.module(features).values())
        return found


class Autocast(Base):
    def around(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x * 2


class OpenLength(Base):
    def around(self, x: Tensor) -> Tensor:
        return x + sum(row.sum() for row in list(x))


class WrongWithin(Base):
    """A layer that fails while its sizes are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(8, 16)

    def around(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(x)
        return y if y.size(1) == 16 else x


class DividesByZero(Base):
    def around(self, x: Tensor) -> Tensor:
        return x / (x[:, :1] > 0).float()


class TakesSequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 4, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.ec(features)["f"]
        if found.values().size(0) > 3:
            return found.to_padded_dense(2)
        return found.to_padded_dense(2) * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (HiddenCollection, r"a EmbeddingBagCollection is called that is no submodule.*make it an attribute"),
        (
            Autocast,
            r"torch\.autocast to torch\.bfloat16 does not reach the graph\. At .*test_python_code\.py:\d+ in ",
        ),
        (Autocast, r"--dense-dtype bfloat16"),
        (LayerOfOpenSize, r"differs between batches.*`found: Tensor = nn\.LayerNorm\(x\.size\(0\)\)"),
        (OpenLength, r"cannot be iterated.*`return x \+ sum.*Split it with unbind"),
        (
            WrongWithin,
            r"RuntimeError.*At .*test_python_code\.py:\d+ in WrongWithin\.around: `y: Tensor = self\.narrow\(x\)`",
        ),
        (
            DividesByZero,
            r"row \d+ of the samples: the model itself answers .*finite numbers.*clamp\(min=1e-6\)",
        ),
        (TakesSequences, r"control flow.*`if found\.values\(\)\.size\(0\) > 3"),
    ],
)
def test_what_cannot_be_traced_names_the_line(
    tmp_path: Path, make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        exported(make(), tmp_path / "artifact")
