"""What is compared: every call of a collection, and the float model only where no ID policy applies.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import export.graph.prepared
import export.tables
import export.verify.run
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError, VerificationError
from recsys.inputs.signature import IdPolicy
from recsys.rows.quantize import Writer, store_table
from recsys.sharding.sharded import ShardedOptions
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import Twice, spread


class _TwiceSequence(nn.Module):
    """One collection of single rows for two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 33, 8, ["f"])])

    def forward(self, mine: KeyedJaggedTensor, theirs: KeyedJaggedTensor) -> Tensor:
        first, second = (self.ec(kjt)["f"].to_padded_dense(2).sum(dim=1) for kjt in (mine, theirs))
        return first * second


def _samples(path: Path, sparse: dict[str, list[list[int]]]) -> Path:
    path.write_text(json.dumps({"sparse": sparse}))
    return path


def _damage_row(monkeypatch: pytest.MonkeyPatch, victim: str, row: int) -> None:
    """One row of one table is damaged on its way into the file, digests and all."""

    def faulty(weight: Tensor, table: Any, layout: Any, write: Writer, on_rows: Any = None) -> Any:
        def damaged(offset: int, rows: Tensor) -> None:
            rows = rows.clone()
            if table.name.endswith(victim):
                rows[row, 4:] ^= 0xFF
            write(offset, rows)

        return store_table(weight, table, layout, damaged, on_rows)

    monkeypatch.setattr(export.tables, "store_table", faulty)


@pytest.mark.parametrize("row", [5, 7], ids=["first call", "second call"])
@pytest.mark.parametrize("model", [Twice, _TwiceSequence])
def test_a_row_that_one_of_two_calls_reads_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], row: int
) -> None:
    sparse = {"mine.f": [[1], [5]], "theirs.f": [[7], [2]]}
    if model is Twice:
        sparse |= {"mine.g": [[0], [1]], "theirs.g": [[2], [3]]}
    config = ExportConfig(samples=_samples(tmp_path / "samples", sparse))
    export_model(model(), tmp_path / "sound", config)
    _damage_row(monkeypatch, "t", row)
    path = "ebc" if model is Twice else "ec"
    where = {5: 1, 7: 0}[row]
    with pytest.raises(
        VerificationError, match=f"lookup 'f' of collection '{path}', row {where} of the samples: the stored"
    ):
        export_model(model(), tmp_path / "a", config)
    assert not (tmp_path / "a").exists()


def test_each_call_has_its_own_bound(tmp_path: Path) -> None:
    """Row 5 is a thousand times larger, so are its scale and bound; another call's are none of its own."""
    for large in ("mine.f", "theirs.f"):
        model = Twice()
        with torch.no_grad():
            model.ebc.embedding_bags["t"].weight[5] *= 1000.0
        sparse = {"mine.f": [[2, 3]], "theirs.f": [[2, 3]], "mine.g": [[0]], "theirs.g": [[1]]}
        sparse[large] = [[5, 6]]
        config = ExportConfig(samples=_samples(tmp_path / "samples", sparse), overwrite=True)
        assert export_model(model, tmp_path / "a", config).num_samples == 1


def test_samples_without_rows_prove_nothing(tmp_path: Path) -> None:
    samples = _samples(tmp_path / "samples", {"f": [], "g": []})
    with pytest.raises(ExportError, match="samples: got 'samples' without rows, expected at least one"):
        export_model(_policies_model(), tmp_path / "a", ExportConfig(samples=samples))


def _policies_model() -> EmbeddingBagCollection:
    model = EmbeddingBagCollection([bag("t", 9, 8, ["f"]), bag("u", 9, 8, ["g"], "MEAN")])
    spread(model, 1.0)
    return model


OUT_OF_RANGE = {"f": [[9, -1, 3], [2]], "g": [[100, 4], [-(2**63), 0]]}


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0",)], ids=",".join)
@pytest.mark.parametrize("policy", [IdPolicy.ZERO, IdPolicy.HASH, IdPolicy.FMIX64], ids=str)
def test_differences_are_measured_where_no_policy_applies(
    tmp_path: Path, policy: IdPolicy, devices: tuple[str, ...]
) -> None:
    """Zeroed rows differ from the float model's by their own size; that is no loss of quantizing."""
    config = ExportConfig(
        data_type=DataType.FP32,
        id_policy=policy,
        samples=_samples(tmp_path / "samples", OUT_OF_RANGE),
        targets=(devices,),
    )
    report = export_model(_policies_model(), tmp_path / "a", config)
    assert list(report.differences) == [",".join(devices)]
    found = report.differences[",".join(devices)]
    assert set(found) == {"f", "g"}
    assert all(difference.max_abs < 1e-5 for difference in found.values())


def test_what_becomes_of_ids_out_of_range_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph hashes IDs where the model was to give zeros: in range, nothing could tell."""

    def hashing(*, id_policies: dict[str, IdPolicy], **options: Any) -> ShardedOptions:
        return ShardedOptions(id_policies=dict.fromkeys(id_policies, IdPolicy.HASH), **options)

    monkeypatch.setattr(export.graph.prepared, "ShardedOptions", hashing)
    clean = _samples(tmp_path / "clean", {"f": [[3], [2]], "g": [[4], [0]]})
    export_model(_policies_model(), tmp_path / "a", ExportConfig(id_policy=IdPolicy.ZERO, samples=clean))
    strange = _samples(tmp_path / "strange", OUT_OF_RANGE)
    with pytest.raises(VerificationError, match=r"output '[fg]', row \d of the samples: .* the stored rows"):
        export_model(
            _policies_model(), tmp_path / "b", ExportConfig(id_policy=IdPolicy.ZERO, samples=strange)
        )
    assert not (tmp_path / "b").exists()


def test_the_report_states_the_largest_difference_of_all_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript, which is verified first, answers a little beside the ExportedProgram and the program."""
    beside = 1e-5

    def shifted(*args: Any, scripted: bool = False, **options: Any) -> LoadedArtifact:
        artifact = load_artifact(*args, scripted=scripted, **options)
        if scripted:
            forward = artifact.forward
            object.__setattr__(
                artifact, "forward", lambda *inputs: {k: v + beside for k, v in forward(*inputs).items()}
            )
        return artifact

    monkeypatch.setattr(export.verify.run, "load_artifact", shifted)
    config = ExportConfig(data_type=DataType.FP32, graph_format="both")
    report = export_model(_policies_model(), tmp_path / "a", config)
    for output in ("f", "g"):
        assert report.checked["cpu"][output].max_abs == pytest.approx(beside, rel=0.1)
        assert report.differences["cpu"][output].max_abs == pytest.approx(beside, rel=0.1)
