"""What becomes of IDs out of range, table by table, in the artifact.

Shape letters: B batch, R rows.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact
from recsys.configs import DataType
from recsys.inputs.signature import IdPolicy
from recsys.quant import float_weights
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise
from tests.cases.rows_of_ids import row_of
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import exported

ROWS = 10
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
Made = tuple[dict[str, Tensor], LoadedArtifact]
BAD = [
    ROWS,
    ROWS + 1,
    127,
    2**31,
    2**32 + 3,
    2**62,
    INT64_MAX,
    -1,
    -2,
    -ROWS,
    -(2**31) - 1,
    -(2**62),
    INT64_MIN,
]
POLICIES = {
    "hashed": IdPolicy.HASH,
    "zeroed": IdPolicy.ZERO,
    "strict": IdPolicy.REJECT,
    "mixed": IdPolicy.FMIX64,
}


def _made(tmp_path: Path, cut: str, pooling: str = "SUM") -> Made:
    """Tables of FP32 rows, one policy each; their weights and the artifact."""
    torch.manual_seed(0)
    tables = [bag(name, ROWS, 16, [name], pooling) for name in POLICIES]
    model = EmbeddingBagCollection(tables)
    plan = None
    if cut != "whole":
        kind = {"rows": row_wise, "columns": column_wise}[cut]
        plan = ShardingPlan(plan={"": {table.name: kind(table, [1, 0]) for table in tables}})
    _, artifact = exported(
        model,
        tmp_path / "a",
        plan=plan,
        targets=(("cpu",) if plan is None else ("cpu", "cpu"),),
        data_type=DataType.FP32,
        table_id_policies=POLICIES,
    )
    return {name: weight.detach() for name, weight in float_weights(model).items()}, artifact


class Sequences(nn.Module):
    """Two tables, one row for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence(name, ROWS, 8, [name]) for name in ("hashed", "zeroed")])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return {name: jagged.to_padded_dense(1) for name, jagged in self.ec(features).items()}


def _forward(artifact: LoadedArtifact, **ids: list[list[int]]) -> dict[str, Tensor]:
    """Bags of IDs by feature."""
    filler = [[0]] * max(map(len, ids.values()))
    bags = [ids.get(name, filler) for name in POLICIES]
    lengths = torch.tensor([len(bag) for feature in bags for bag in feature])
    flat = [i for feature in bags for bag in feature for i in bag]
    return artifact.forward(lengths, torch.tensor(flat, dtype=torch.int64))


@pytest.mark.parametrize("cut", ["whole", "rows", "columns"])
def test_hash_takes_ids_modulo_the_rows(tmp_path: Path, cut: str) -> None:
    weights, artifact = _made(tmp_path, cut)
    found = _forward(artifact, hashed=[[i] for i in BAD])
    expected = weights["hashed"][torch.tensor([i % ROWS for i in BAD])]
    assert torch.equal(found["hashed"], expected)


@pytest.mark.parametrize("cut", ["whole", "rows", "columns"])
def test_fmix64_mixes_all_ids_before(tmp_path: Path, cut: str) -> None:
    weights, artifact = _made(tmp_path, cut)
    ids = [0, 1, *BAD, *(2**k for k in range(63)), *(-(2**k) for k in range(64))]
    found = _forward(artifact, mixed=[[i] for i in ids])
    assert torch.equal(found["mixed"], weights["mixed"][torch.tensor([row_of(i, ROWS) for i in ids])])


@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
@pytest.mark.parametrize("cut", ["whole", "rows", "columns"])
def test_zero_reads_a_row_of_zeros_that_counts(tmp_path: Path, cut: str, pooling: str) -> None:
    weights, artifact = _made(tmp_path, cut, pooling)
    bags = [[i] for i in BAD] + [[i, 3] for i in BAD]
    found = _forward(artifact, zeroed=bags)["zeroed"]
    share = 0.5 if pooling == "MEAN" else 1.0
    assert torch.equal(found[: len(BAD)], torch.zeros(len(BAD), 16))
    assert torch.equal(found[len(BAD) :], (weights["zeroed"][3] * share).expand(len(BAD), -1))


@pytest.fixture(scope="module", params=["whole", "rows"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Tables that lie whole, or cut by rows."""
    return _made(tmp_path_factory.mktemp("reject"), request.param)


@pytest.mark.parametrize("bad", BAD)
def test_reject_raises_and_leaves_the_input_alone(made: Made, bad: int) -> None:
    weights, artifact = made
    ids = torch.tensor([0, 0, bad, 0])
    with pytest.raises(RuntimeError):
        artifact.forward(torch.tensor([1, 1, 1, 1]), ids)
    assert ids.tolist() == [0, 0, bad, 0]
    found = _forward(artifact, strict=[[9]])
    assert torch.equal(found["strict"][0], weights["strict"][9])


@pytest.mark.parametrize(
    ("lengths", "num_ids"),
    [
        ([1, 1, 2, 1], 4),
        ([1, 1, 0, 1], 4),
        ([2, -1, 2, 1], 4),
        ([3, 1, 1, -1], 4),
        ([1, 1, 1], 4),
        ([2**62, 2**62, 2**62, 2**62], 4),
    ],
    ids=["too many", "too few", "negative", "negative last", "no whole rows", "overflow"],
)
def test_lengths_that_lie_raise(made: Made, lengths: list[int], num_ids: int) -> None:
    with pytest.raises(RuntimeError):
        made[1].forward(torch.tensor(lengths), torch.zeros(num_ids, dtype=torch.int64))


def test_the_signature_tells_the_policies(made: Made) -> None:
    features = {s.name: s for s in made[1].signature.sparse}
    assert {name: s.tables[0].id_policy for name, s in features.items()} == POLICIES
    assert {name: s.id_limit for name, s in features.items()} == {
        "hashed": None,
        "zeroed": None,
        "strict": ROWS,
        "mixed": None,
    }


@pytest.mark.parametrize("cut", ["whole", "rows"])
def test_policies_of_sequences(tmp_path: Path, cut: str) -> None:
    model = Sequences()
    tables = model.ec.embedding_configs()
    plan = None
    if cut == "rows":
        plan = ShardingPlan(plan={"ec": {table.name: row_wise(table, [1, 0]) for table in tables}})
    _, artifact = exported(
        model,
        tmp_path / "a",
        plan=plan,
        targets=(("cpu", "cpu"),),
        data_type=DataType.FP32,
        table_id_policies={"hashed": IdPolicy.HASH, "zeroed": IdPolicy.ZERO},
    )
    lengths = torch.ones(2 * len(BAD), dtype=torch.int64)
    found = artifact.forward(lengths, torch.tensor(BAD * 2))
    weight = float_weights(model.ec)["hashed"].detach()
    assert torch.equal(found["hashed"].squeeze(1), weight[torch.tensor([i % ROWS for i in BAD])])
    assert torch.equal(found["zeroed"], torch.zeros(len(BAD), 1, 8))


def test_one_feature_under_several_policies(tmp_path: Path) -> None:
    model = EmbeddingBagCollection(
        [bag("hashed", 7, 8, ["f"]), bag("zeroed", 9, 8, ["f"]), bag("mixed", 5, 8, ["f"])]
    )
    report, artifact = exported(
        model,
        tmp_path / "a",
        data_type=DataType.FP32,
        table_id_policies={"hashed": IdPolicy.HASH, "zeroed": IdPolicy.ZERO, "mixed": IdPolicy.FMIX64},
    )
    assert report.differences["cpu"]["f@mixed"].max_abs < 1e-6
    weights = {name: weight.detach() for name, weight in float_weights(model).items()}
    found = artifact.forward(torch.ones(3, dtype=torch.int64), torch.tensor([6, 8, 9]))
    assert torch.equal(found["f@hashed"], weights["hashed"][torch.tensor([6, 1, 2])])
    assert torch.equal(found["f@zeroed"][:2], weights["zeroed"][torch.tensor([6, 8])])
    assert not found["f@zeroed"][2].any()
    assert torch.equal(found["f@mixed"], weights["mixed"][torch.tensor([row_of(i, 5) for i in (6, 8, 9)])])


@pytest.mark.parametrize("data_type", [DataType.INT8, DataType.INT4, DataType.INT2, DataType.FP16])
def test_a_row_of_zeros_is_exact_in_every_row_type(tmp_path: Path, data_type: DataType) -> None:
    model = EmbeddingBagCollection([bag("zeroed", 9, 11, ["f"])])
    _, artifact = exported(model, tmp_path / "a", data_type=data_type, id_policy=IdPolicy.ZERO)
    found = artifact.forward(torch.tensor([1, 2, 1]), torch.tensor([9, -1, 100, 8]))["f"]
    assert not found[:2].any()
    assert found[2].any()


def test_samples_out_of_range_are_verified_by_policy(tmp_path: Path) -> None:
    tables = [bag("hashed", 7, 8, ["f"]), bag("zeroed", 9, 8, ["g"]), bag("mixed", 9, 8, ["h"])]
    model = EmbeddingBagCollection(tables)
    samples = {"f": [[7, 700, -1]], "g": [[9, -(2**63)]], "h": [[5, 7 << 40, -1]]}
    (tmp_path / "samples").write_text(json.dumps({"sparse": samples}))
    report, artifact = exported(
        model,
        tmp_path / "a",
        data_type=DataType.FP32,
        samples=tmp_path / "samples",
        table_id_policies={"hashed": IdPolicy.HASH, "zeroed": IdPolicy.ZERO, "mixed": IdPolicy.FMIX64},
    )
    assert report.num_samples == 1
    # Hashed IDs are compared with the float rows that they mean; the float model has no row of zeros.
    assert max(report.differences["cpu"][name].max_abs for name in "fh") < 1e-6
    assert float(artifact.forward(torch.tensor([0, 2, 0]), torch.tensor([9, -1]))["g"].abs().max()) == 0.0
