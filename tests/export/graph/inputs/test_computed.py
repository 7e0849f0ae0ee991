"""IDs that the model computes: what the signature asks for, and what becomes of IDs that leave their tables.

Shape letters: B batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ComputedIdError, ExportError
from recsys.inputs.signature import IdPolicy
from tests.cases.rows_of_ids import row_of
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import exported

ROWS = 50


class _Crossed(nn.Module):
    """IDs of ``f`` are looked up themselves, and tripled in another table, which has 50 rows."""

    def __init__(self, kind: str = "bag") -> None:
        super().__init__()
        torch.manual_seed(13)
        self.kind = kind
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 30, 8, ["g"])])
        if kind == "sequence":
            self.cross: nn.Module = EmbeddingCollection([sequence("c", ROWS, 8, ["fg"])])
        else:
            tables = [bag("c", ROWS, 8, ["fg"]), bag("d", 100, 4, ["other"], "MEAN")]
            self.cross = EmbeddingBagCollection(tables)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        f, g = features["f"], features["g"]
        tripled = f.values() * 3 + 1
        if self.kind == "sequence":
            made = KeyedJaggedTensor(["fg"], tripled, lengths=f.lengths())
            rows = self.cross(made)["fg"].to_padded_dense(4).sum(dim=1)
        else:
            made = KeyedJaggedTensor.from_lengths(
                ["fg", "other"],
                torch.cat([tripled, g.values() + 1]),
                torch.cat([f.lengths(), g.lengths()]),
            )
            rows = self.cross(made).values()
        return {"score": torch.cat([self.ebc(features).values(), rows], dim=1).sum(dim=1)}


def _samples(folder: Path) -> Path:
    """None computes an ID that leaves its table."""
    (folder / "samples").write_text(
        json.dumps({"sparse": {"f": [[3], [16], [2, 4], []], "g": [[1], [], [29, 0], [2]]}})
    )
    return folder / "samples"


def _score(model: LoadedArtifact, f: list[list[int]]) -> Tensor:
    lengths = torch.tensor([*(len(ids) for ids in f), *(1 for _ in f)])
    values = torch.tensor([*(i for ids in f for i in ids), *(0 for _ in f)])
    return model.forward(lengths, values)["score"]


@pytest.mark.parametrize("kind", ["bag", "sequence"])
@pytest.mark.parametrize("targets", [(("cpu",),), (("cpu", "cpu"),)], ids=str)
def test_a_computed_id_that_leaves_its_table_is_named(tmp_path: Path, kind: str, targets: Any) -> None:
    exported(_Crossed(kind), tmp_path / "a", samples=_samples(tmp_path), targets=targets)
    for scripted in (True, False):
        model = load_artifact(tmp_path / "a", scripted=scripted)
        # It is not asked for what the model computes.
        assert [feature.name for feature in model.signature.sparse] == ["f", "g"]
        fine = _score(model, [[1, 2], [16]])
        for _ in range(3):
            with pytest.raises(ComputedIdError) as caught:
                _score(model, [[1, 2], [16, 17]])
            assert str(caught.value) == "computed ID: table 'cross.c' got 52, expected 0 <= ID < 50"
            torch.testing.assert_close(_score(model, [[1, 2], [16]]), fine)


def test_exported_programs_tell_that_an_id_is_wrong(tmp_path: Path) -> None:
    config = ExportConfig(graph_format="pt2", samples=_samples(tmp_path))
    export_model(_Crossed(), tmp_path / "a", config)
    model = load_exported_artifact(tmp_path / "a")
    _score(model, [[1, 2], [16]])
    with pytest.raises(
        ComputedIdError,
        match=r"computed ID: (got one that is no row of its table|table .* got 52, expected 0 <= ID < 50)",
    ):
        _score(model, [[1, 2], [16, 17]])


def test_a_target_on_devices_that_are_not_here_exports(tmp_path: Path) -> None:
    report, _ = exported(
        _Crossed(), tmp_path / "a", samples=_samples(tmp_path), targets=(("cpu",), ("cuda:0", "cuda:1"))
    )
    assert set(report.differences) == {"cpu", "cuda:0,cuda:1"}


@pytest.mark.parametrize(
    ("policy", "row"),
    [(IdPolicy.HASH, 58 % ROWS), (IdPolicy.FMIX64, row_of(58, ROWS)), (IdPolicy.ZERO, None)],
)
def test_policies_hold_for_computed_ids(tmp_path: Path, policy: IdPolicy, row: int | None) -> None:
    """Random samples leave the table; the export proves what becomes of them."""
    model = _Crossed()
    report, artifact = exported(model, tmp_path / "a", table_id_policies={"c": policy})
    assert report.differences["cpu"]["score"].max_abs < 0.1
    weight = model.cross.embedding_bags["c"].weight  # type: ignore[union-attr,index]
    with torch.no_grad():
        crossed = torch.zeros(()) if row is None else weight[row].sum()
        own = model.ebc.embedding_bags["t"].weight[19].sum() + model.ebc.embedding_bags["u"].weight[0].sum()
        other = model.cross.embedding_bags["d"].weight[1].sum()  # type: ignore[union-attr,index]
    found = _score(artifact, [[19]])
    torch.testing.assert_close(found[0], own + other + crossed, rtol=0, atol=0.1)


def test_samples_that_leave_a_table_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"forward failed on the samples: .* computes IDs for \['cross'\]: .* --id-policy"
    ):
        export_model(_Crossed(), tmp_path / "a", ExportConfig())


class _Hashed(nn.Module):
    """All features of the request, hashed: they are read as a whole, and asked for as before."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 20, 8, ["g"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        hashed = KeyedJaggedTensor(features.keys(), (features.values() * 7) % 20, lengths=features.lengths())
        pooled: Tensor = self.ebc(hashed).values()
        return pooled


def test_features_that_are_read_as_a_whole_are_asked_for(tmp_path: Path) -> None:
    _, artifact = exported(_Hashed(), tmp_path / "a")
    assert [feature.name for feature in artifact.signature.sparse] == ["f", "g"]


class _Remade(nn.Module):
    """Makes a KeyedJaggedTensor of the request's IDs, in the way of the case."""

    def __init__(self, make: Callable[[KeyedJaggedTensor], KeyedJaggedTensor]) -> None:
        super().__init__()
        self.make = make
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 20, 8, ["g"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled: Tensor = self.ebc(self.make(features)).values()
        return pooled


REMADE: dict[str, tuple[bool, Callable[[KeyedJaggedTensor], KeyedJaggedTensor]]] = {
    "as they are": (False, lambda kjt: kjt),
    "permuted": (False, lambda kjt: kjt.permute([1, 0])),
    "split and joined": (False, lambda kjt: KeyedJaggedTensor.concat(kjt.split([1, 1])[::-1])),
    "one by one": (False, lambda kjt: KeyedJaggedTensor.from_jt_dict({"g": kjt["g"], "f": kjt["f"]})),
    "weighted anew": (False, lambda kjt: KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=kjt.lengths())),
    "exchanged": (True, lambda kjt: KeyedJaggedTensor.from_jt_dict({"f": kjt["g"], "g": kjt["f"]})),
    "computed": (
        True,
        lambda kjt: KeyedJaggedTensor(kjt.keys(), kjt.values() * 1, lengths=kjt.lengths()),
    ),
}


@pytest.mark.parametrize("case", REMADE)
def test_only_computed_ids_are_checked_once_more(tmp_path: Path, case: str) -> None:
    is_checked, make = REMADE[case]
    exported(_Remade(make), tmp_path / "a", features={"features": ("f", "g")})
    graph = torch.jit.load(str(tmp_path / "a" / "target-0.pt")).inlined_graph
    assert ("prim::RaiseException" in str(graph)) == is_checked
