"""Programs' lookups: they read the batch as it came, whatever tables, collections and devices there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import IdPolicy
from recsys.sharding.plan.plan import ShardingPlan
from tests.native.program_models import assert_near, row_alone
from tests.support.helpers import bag, sequence
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels

MIXED = [
    bag("a", 30, 8, ["f0"], "MEAN"),
    bag("b", 40, 8, ["f1"]),
    bag("c", 50, 16, ["f2", "f3"], "MEAN"),
    bag("d", 60, 8, ["f4"]),
]
SHARED = [bag("a", 30, 8, ["f0", "f1"]), bag("b", 70, 8, ["f1", "f2"], "MEAN"), bag("c", 20, 8, ["f2"])]


class Scored(nn.Module):
    """Collections of pooled tables over one batch, and a layer over what they return."""

    def __init__(self, *collections: list[Any], is_weighted: bool = False) -> None:
        super().__init__()
        made = [EmbeddingBagCollection(tables=tables, is_weighted=is_weighted) for tables in collections]
        self.collections = nn.ModuleList(made)
        width = sum(
            table.embedding_dim * len(table.feature_names) for tables in collections for table in tables
        )
        self.layer = nn.Linear(width, 3)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = [collection(features).values() for collection in self.collections]
        return torch.relu(self.layer(torch.cat(found, dim=1)))


class TwoBatches(nn.Module):
    """A collection for each of two sparse arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = EmbeddingBagCollection(tables=MIXED), EmbeddingBagCollection(tables=SHARED)
        self.layer = nn.Linear(56 + 40, 3)

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        return self.layer(torch.cat((self.first(user).values(), self.second(item).values()), dim=1))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and how it is exported."""

    make: Callable[[], nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)


FLIPPED = [bag("e", 25, 8, ["f3", "f1"]), bag("g", 35, 8, ["f0"])]
CASES = {
    "mixed": Case(make=lambda: Scored(MIXED)),
    "shared features": Case(make=lambda: Scored(SHARED)),
    "two collections": Case(make=lambda: Scored(MIXED, FLIPPED)),
    "weighted": Case(make=lambda: Scored(MIXED, is_weighted=True)),
    "weighted, flipped": Case(make=lambda: Scored(MIXED, FLIPPED, is_weighted=True)),
    "devices": Case(make=lambda: Scored(MIXED, SHARED), devices=("cpu", "cpu", "cpu")),
    "policies": Case(
        make=lambda: Scored(MIXED),
        options={"table_id_policies": {"a": IdPolicy.HASH, "b": IdPolicy.ZERO, "c": IdPolicy.HASH}},
        devices=("cpu", "cpu"),
    ),
    "hashed": Case(make=lambda: Scored(SHARED, FLIPPED), options={"id_policy": IdPolicy.HASH}),
    "fmix64": Case(make=lambda: Scored(SHARED, FLIPPED), options={"id_policy": IdPolicy.FMIX64}),
    "both hashes": Case(
        make=lambda: Scored(MIXED),
        options={"table_id_policies": {"a": IdPolicy.HASH, "b": IdPolicy.ZERO, "c": IdPolicy.FMIX64}},
        devices=("cpu", "cpu"),
    ),
    "two batches": Case(
        make=TwoBatches,
        options={"features": {"user": ["f4", "f2", "f0", "f3", "f1"], "item": ["f0", "f1", "f2"]}},
    ),
}  # fmt: skip


def loaded(folder: Path, case: Case) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Export a model, and return its TorchScript and its program."""
    torch.manual_seed(0)
    model = case.make()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    config = ExportConfig(targets=(case.devices,), **case.options)
    export_model(model.eval(), folder, config)
    return load_artifact(folder, scripted=True), load_artifact(folder)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("isa")
def test_a_program_looks_up_what_the_graph_does(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", CASES[name])
    assert own.runs_program
    for num_rows in (0, 1, 2, 5, 48, 49, 100):
        inputs = batch_of(plain.signature, num_rows, seed=num_rows).inputs()
        (found,), (expected,) = own.forward(*inputs).values(), plain.forward(*inputs).values()
        assert_near(found, expected, "float32")


@pytest.mark.parametrize("name", ["mixed", "devices", "two batches"])
def test_a_row_has_the_same_bits_in_every_batch(tmp_path: Path, name: str) -> None:
    _, own = loaded(tmp_path / "a", CASES[name])
    lengths, values = batch_of(own.signature, 60, seed=1).inputs()
    (every,) = own.forward(lengths, values).values()
    for row in (0, 1, 47, 48, 59):
        (found,) = own.forward(*row_alone(lengths, values, 60, row)).values()
        assert torch.equal(found[0], every[row])


@pytest.mark.parametrize("name", CASES)
def test_wrong_ids_and_lengths_are_refused_as_by_the_graph(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", CASES[name])
    lengths, values, *weights = batch_of(plain.signature, 20, seed=2).inputs()
    wrong_inputs = [(lengths[:-1], values), (lengths, values[:-1]), (-lengths, values)]
    wrong_inputs += [
        (torch.where(torch.arange(len(lengths)) == at, 2**40, lengths), values) for at in (0, -1)
    ]
    ends = lengths.view(-1, 20).sum(1).cumsum(0)
    for end in ends.tolist():
        for bad in (-1, 70, 2**62, -(2**63)):
            changed = values.clone()
            changed[end - 1] = bad
            wrong_inputs.append((lengths, changed))
    num_refused = 0
    for inputs in wrong_inputs:
        try:
            (expected,) = plain.forward(*inputs, *weights).values()
        except RuntimeError:
            num_refused += 1
            with pytest.raises(RuntimeError):
                own.forward(*inputs, *weights)
        else:
            (found,) = own.forward(*inputs, *weights).values()
            assert_near(found, expected, "float32")
    assert num_refused >= 4


def test_tables_cut_by_rows_are_looked_up_too(tmp_path: Path) -> None:
    def sharded(rows: int, dim: int, *, is_cut: bool) -> dict[str, Any]:
        bounds = [0, rows // 2, rows] if is_cut else [0, rows]
        shards = [
            {"shard_offsets": [start, 0], "shard_sizes": [end - start, dim], "rank": rank}
            for rank, (start, end) in enumerate(itertools.pairwise(bounds))
        ]
        return {"sharding_type": "row_wise" if is_cut else "table_wise", "shards": shards}

    tables = {table.name: (table.num_embeddings, table.embedding_dim) for table in MIXED}
    plan = {name: sharded(*size, is_cut=name in "ad") for name, size in tables.items()}
    model = Scored(MIXED)
    options = {"plan": ShardingPlan.from_json({"collections.0": plan})}
    plain, own = loaded(tmp_path / "a", Case(make=lambda: model, options=options, devices=("cpu", "cpu")))
    assert own.runs_program
    for num_rows in (0, 1, 2, 49):
        inputs = batch_of(plain.signature, num_rows, seed=num_rows).inputs()
        (found,), (expected,) = own.forward(*inputs).values(), plain.forward(*inputs).values()
        assert_near(found, expected, "float32")
    lengths, values = batch_of(plain.signature, 20).inputs()
    of_feature = torch.repeat_interleave(torch.arange(5), lengths.view(5, 20).sum(1))
    for feature, bad in ((0, 30), (0, -1), (1, 40), (4, 60), (4, 2**62)):
        with pytest.raises(RuntimeError):
            own.forward(lengths, torch.where(of_feature == feature, bad, values))


class WithSequences(nn.Module):
    """Pooled tables, and a table of single rows."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled = EmbeddingBagCollection(tables=MIXED)
        self.items = EmbeddingCollection(tables=[sequence("s", 20, 8, ["f1"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        history = self.items(features)["f1"]
        return {"pooled": self.pooled(features).values(), "ids": history.to_padded_dense(3).sum(dim=1)}


def test_sequences_keep_the_order_of_their_ids(tmp_path: Path) -> None:
    plain, own = loaded(tmp_path / "a", Case(make=WithSequences))
    assert own.runs_program
    for num_rows in (0, 1, 2, 30):
        inputs = batch_of(plain.signature, num_rows, seed=num_rows).inputs()
        found = own.forward(*inputs)
        for output, expected in plain.forward(*inputs).items():
            assert_near(found[output], expected, "float32")
    lengths, values = batch_of(plain.signature, 9).inputs()
    of_feature = torch.repeat_interleave(torch.arange(5), lengths.view(5, 9).sum(1))
    # f1 has 20 rows in one table and 40 in the other.
    for feature, bad in ((1, 20), (1, -1), (4, 60)):
        with pytest.raises(RuntimeError):
            own.forward(lengths, torch.where(of_feature == feature, bad, values))
