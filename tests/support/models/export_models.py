"""Models of many shapes, how a batch becomes their arguments, and an export in one line.

Shape letters: B batch, D embedding dim, N number of IDs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from export.report import ExportReport
from recsys import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from recsys.embedding import FloatCollection
from recsys.inputs.signature import Signature
from recsys.models.dlrm import DLRM
from recsys.quant import float_tables, float_weights
from recsys.rows.format import RowFormat, dequantize_rows, quantize_rows
from tests.support.helpers import bag, sequence

ONE_KJT = "features"


def dlrm(num_tables: int = 4, dim: int = 16, seed: int = 0) -> DLRM:
    """SUM and MEAN tables, 5 dense features, one logit."""
    torch.manual_seed(seed)
    tables = [bag(f"t{i}", 50 + 30 * i, dim, [f"f{i}"], ("SUM", "MEAN")[i % 2]) for i in range(num_tables)]
    return DLRM(EmbeddingBagCollection(tables), 5, [32, dim], [32, 1])


def bare(*, weighted: bool = False) -> EmbeddingBagCollection:
    """A collection that is the model; odd widths, a table of two features, a feature of two tables."""
    torch.manual_seed(1)
    tables = [
        bag("users", 40, 63, ["user"]),
        bag("goods", 30, 10, ["item", "last_item"], "MEAN"),
        bag("wide", 90, 16, ["item"]),
        bag("tiny", 3, 1, ["flag"]),
    ]
    return EmbeddingBagCollection(tables, is_weighted=weighted)


class History(nn.Module):
    """Sequences, made dense and pooled by hand, beside pooled tables."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.sequences = EmbeddingCollection(
            [sequence("goods", 60, 12, ["clicked", "bought"]), sequence("shops", 20, 12, ["shop"])]
        )
        self.pooled = EmbeddingBagCollection([bag("users", 40, 12, ["user"])])
        self.layer = nn.Linear(12, 6)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.sequences(features)
        clicked = found["clicked"].to_padded_dense(desired_length=3)
        bought = found["bought"].to_padded_dense(desired_length=8).sum(dim=1)
        shop = found["shop"].to_padded_dense(desired_length=1).squeeze(1)
        user = self.pooled(features)["user"]
        score = (self.layer(clicked).sum(dim=1) * self.layer(bought + shop + user)).sum(dim=1)
        return {"score": score, "clicked": clicked}


class Weighted(nn.Module):
    """Unweighted and weighted sparse groups beside two dense inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.plain = EmbeddingBagCollection([bag("users", 40, 8, ["user"]), bag("ads", 9, 4, ["ad"], "MEAN")])
        self.weighted = EmbeddingBagCollection([bag("tags", 25, 8, ["tag", "topic"])], is_weighted=True)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(
        self, age: Tensor, plain: KeyedJaggedTensor, price: Tensor, scored: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        pooled, tags = self.plain(plain).values(), self.weighted(scored).values()
        dense = torch.relu(self.first(age) + self.second(price))
        return torch.cat([dense, pooled, tags], dim=1).sum(dim=1), tags


class SameName(nn.Module):
    """Two arguments hold a feature of the same name, in tables of different sizes; one table takes both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.user_side = EmbeddingBagCollection([bag("u", 30, 8, ["id"]), bag("c", 11, 4, ["country"])])
        self.item_side = EmbeddingBagCollection([bag("i", 70, 8, ["id"], "MEAN")])
        self.both = EmbeddingBagCollection([bag("b", 20, 4, ["kind"])])

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        parts = [self.user_side(user), self.item_side(item), self.both(user), self.both(item)]
        return torch.cat([part.values() for part in parts], dim=1)


class Several(nn.Module):
    """Collections in containers, deep in the tree."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.towers = nn.ModuleList(
            [EmbeddingBagCollection([bag("t", 20 + i, 8, [f"f{i}", "common"])]) for i in range(3)]
        )
        self.rest = nn.ModuleDict(
            {"inner": nn.ModuleDict({"ec": EmbeddingBagCollection([bag("r", 9, 8, ["g"])])})}
        )

    def forward(self, features: KeyedJaggedTensor) -> list[Tensor]:
        inner = cast(nn.ModuleDict, self.rest["inner"])["ec"]
        return [tower(features).values() for tower in self.towers] + [inner(features).values()]


class Pair(NamedTuple):
    click: Tensor
    buy: Tensor


@dataclass
class Answers:
    click: Tensor
    buy: Tensor


class Returning(nn.Module):
    """One dense layer over one table; what it returns is the case."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.kind = kind
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])
        self.layer = nn.Linear(8, 2)

    def forward(self, features: KeyedJaggedTensor) -> Any:
        both = self.layer(self.ebc(features).values())
        click, buy = both[:, 0], both[:, 1]
        made: dict[str, Callable[[], Any]] = {
            "tensor": lambda: both,
            "dict": lambda: {"click": click, "buy": buy},
            "tuple": lambda: (click, buy),
            "list": lambda: [click, buy],
            "named tuple": lambda: Pair(click, buy),
            "dataclass": lambda: Answers(click, buy),
            "keyed tensor": lambda: self.ebc(features),
        }
        return made[self.kind]()


class Noisy(nn.Module):
    """Layers that behave otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])
        self.after = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 2))
        nn.init.normal_(cast(Tensor, self.after[0].running_mean))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        after: Tensor = self.after(self.ebc(features).values())
        return after


class Twice(nn.Module):
    """One collection for two arguments."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"]), bag("s", 12, 8, ["g"], "MEAN")])

    def forward(self, mine: KeyedJaggedTensor, theirs: KeyedJaggedTensor) -> Tensor:
        return self.ebc(mine).values() * self.ebc(theirs).values()


class Folded(nn.Module):
    """Two dimensions are folded into one, as in MLPerf's DLRM, which a graph cannot do without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 20, 8, ["g"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.ebc(features).values()
        apart = rows.view(rows.size(0), 2, 8)
        return {"flat": (apart * 2).reshape(rows.size(0), -1), "largest": apart.max(dim=2).values}


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """A model, and for each of its sparse arguments the feature of each of its wire names.

    ``sparse`` is None where all features go into the only sparse argument under their own names.
    """

    make: Callable[[], nn.Module]
    sparse: Mapping[str, Mapping[str, str]] | None = None
    table_data_types: Mapping[str, DataType] = field(default_factory=dict)


#: A case, its float model and its artifact.
ExportedCase = tuple[ModelCase, nn.Module, LoadedArtifact]
#: Copies the artifact of a case, by its name, to a path.
CopyCase = Callable[[str, Path], Path]

CASES = {
    "dlrm": ModelCase(make=dlrm, sparse={"sparse_features": {f"f{i}": f"f{i}" for i in range(4)}}),
    "bare collection": ModelCase(make=bare),
    "bare weighted collection": ModelCase(make=lambda: bare(weighted=True)),
    "sequences": ModelCase(make=History),
    "weighted and unweighted": ModelCase(
        make=Weighted,
        sparse={"plain": {"user": "user", "ad": "ad"}, "scored": {"tag": "tag", "topic": "topic"}},
    ),
    "two arguments with one name": ModelCase(
        make=SameName,
        sparse={
            "user": {"id": "user.id", "country": "country", "kind": "user.kind"},
            "item": {"id": "item.id", "kind": "item.kind"},
        },
    ),
    "several collections": ModelCase(make=Several),
    "mixed row types": ModelCase(
        make=bare,
        table_data_types={
            "users": DataType.INT4,
            "goods": DataType.FP16,
            "wide": DataType.INT2,
            "tiny": DataType.FP32,
        },
    ),
}
#: FBGEMM's CUDA lookup of INT2 rows is wrong: such targets are refused.
CUDA_CASES = {
    name: replace(
        case,
        table_data_types={
            table: DataType.INT8 if data_type is DataType.INT2 else data_type
            for table, data_type in case.table_data_types.items()
        },
    )
    for name, case in CASES.items()
}


def arguments(
    signature: Signature, batch: Batch, sparse: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """The keyword arguments of a model's ``forward``, made feature by feature."""
    jagged: dict[str, JaggedTensor] = {}
    at = 0
    for i, feature in enumerate(signature.sparse):
        lengths = batch.lengths[i * batch.num_rows : (i + 1) * batch.num_rows]
        end = at + int(lengths.sum())
        weights = batch.weights[at:end] if feature.weighted and batch.weights is not None else None
        jagged[feature.name] = JaggedTensor(batch.values[at:end], lengths=lengths, weights=weights)
        at = end
    names = sparse or {ONE_KJT: {name: name for name in jagged}}
    dense = {d.name: tensor for d, tensor in zip(signature.dense, batch.dense, strict=True)}
    kjts = {
        argument: KeyedJaggedTensor.from_jt_dict(
            {feature: jagged[wire] for feature, wire in features.items()}
        )
        for argument, features in names.items()
    }
    return {**dense, **kjts}


def collections(model: nn.Module) -> dict[str, FloatCollection]:
    """By path."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (EmbeddingBagCollection, EmbeddingCollection))
    }


def rounded(model: nn.Module, default: DataType, named: Mapping[str, DataType] | None = None) -> nn.Module:
    """The float model with every table's numbers rounded to what rows of its type hold."""
    made = copy.deepcopy(model)
    for collection in collections(made).values():
        weights = float_weights(collection)
        for table in float_tables(collection):
            data_type = (named or {}).get(table.name, default)
            weight = weights[table.name]
            rows = quantize_rows(weight, data_type)
            weight.data = dequantize_rows(rows, RowFormat(data_type=data_type, dim=table.embedding_dim))
    return made


def named(outputs: Any) -> dict[str, Tensor]:
    """A float model's outputs under the names that its artifact should give them."""
    if isinstance(outputs, Tensor):
        return {"default": outputs}
    if isinstance(outputs, dict):
        return outputs
    if hasattr(outputs, "to_dict"):
        return dict(outputs.to_dict())
    if hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if isinstance(outputs, (tuple, list)):
        return {f"output_{i}": output for i, output in enumerate(outputs)}
    return dict(vars(outputs))


def predicted(model: nn.Module, call: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a float model predicts, by output name."""
    with torch.no_grad():
        return named(model(**call))


def batch_of(signature: Signature, num_rows: int, seed: int = 0, *, empty: bool = False) -> Batch:
    """Random rows; with no IDs at all if ``empty``."""
    batch = random_batch(signature, num_rows, torch.Generator().manual_seed(seed))
    if not empty:
        return batch
    return Batch(
        dense=batch.dense,
        lengths=torch.zeros_like(batch.lengths),
        values=batch.values[:0],
        weights=None if batch.weights is None else batch.weights[:0],
        num_rows=num_rows,
    )


def exported(model: nn.Module, path: Path, **options: Any) -> tuple[ExportReport, LoadedArtifact]:
    """Export and load the first target, with the operators that the artifact names."""
    report = export_model(model, path, ExportConfig(**options))
    return report, load_artifact(path, scripted=True)


def assert_close(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], relative: float = 2.0**-16
) -> None:
    """Equal names, in order, and numbers that lie within fp32 rounding of the largest of them."""
    assert list(found) == list(expected)
    for name, want in expected.items():
        assert found[name].dtype == torch.float32
        assert found[name].shape == want.shape, name
        largest = float(want.abs().max()) if want.numel() else 0.0
        torch.testing.assert_close(found[name], want, rtol=0, atol=relative * max(largest, 1e-3))


def spread(model: nn.Module, scale: float, names: Sequence[str] = ()) -> None:
    """Give tables numbers of another magnitude."""
    for collection in collections(model).values():
        for name, weight in float_weights(collection).items():
            if not names or name in names:
                nn.init.normal_(weight, std=scale)
