"""Verification fails where it must: faults are put between quantizing and verifying, and the error says where.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import export.artifact.writing
import export.tables
from export.artifact import single_file
from export.artifact.single_file import write_apart
from export.config import ExportConfig
from export.graph.graph import Graph
from export.pipeline import export_model
from export.verify.compare import compare
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import ROWS_NAME
from recsys.configs import DataType
from recsys.errors import VerificationError
from recsys.rows.quantize import Writer, store_table
from tests.support.models.export_models import CASES, bare, dlrm

Fault = Callable[[Tensor], None]


def _flip(byte: int, mask: int) -> Fault:
    def fault(rows: Tensor) -> None:
        rows[:, byte] ^= mask

    return fault


def _header(value: float, first: int) -> Fault:
    def fault(rows: Tensor) -> None:
        rows[:, first : first + 2] = torch.tensor([value], dtype=torch.float16).view(torch.uint8)

    return fault


def _roll(rows: Tensor) -> None:
    rows[:] = rows.roll(1, dims=0)


FAULTS: dict[str, Fault] = {
    "scale times four": _flip(1, 0x08),
    "scale of zero": _header(0.0, 0),
    "scale of NaN": _header(float("nan"), 0),
    "scale of infinity": _header(float("inf"), 0),
    "bias of zero": _header(0.0, 2),
    "bias of NaN": _header(float("nan"), 2),
    "codes": _flip(4, 0x80),
    "rows in another order": _roll,
    "empty rows": lambda rows: rows.zero_(),  # type: ignore[dict-item,return-value]
}


def _inject(monkeypatch: pytest.MonkeyPatch, victim: str, fault: Fault) -> None:
    """The rows of one table are damaged on their way into the file, digests and all."""

    def faulty(weight: Tensor, table: Any, layout: Any, write: Writer, on_rows: Any = None) -> Any:
        def damaged(offset: int, rows: Tensor) -> None:
            rows = rows.clone()
            if table.name == victim:
                fault(rows)
            write(offset, rows)

        return store_table(weight, table, layout, damaged, on_rows)

    monkeypatch.setattr(export.tables, "store_table", faulty)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("victim", ["users", "wide"])
def test_damaged_rows_name_the_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, fault: Fault
) -> None:
    _inject(monkeypatch, victim, fault)
    feature = {"users": "'user'", "wide": "'item@wide'"}[victim]
    with pytest.raises(VerificationError, match=f"lookup {feature} of collection '', row .* of the samples"):
        export_model(bare(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data_type", [DataType.FP32, DataType.FP16, DataType.INT4, DataType.INT2])
def test_damaged_rows_of_every_type_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_type: DataType
) -> None:
    _inject(monkeypatch, "users", _roll)
    with pytest.raises(VerificationError, match="lookup 'user'"):
        export_model(bare(), tmp_path / "a", ExportConfig(data_type=data_type))


def test_damaged_rows_of_sequences_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _inject(monkeypatch, "sequences.shops", _roll)
    with pytest.raises(VerificationError, match="lookup 'shop' of collection 'sequences'"):
        export_model(CASES["sequences"].make(), tmp_path / "a")


def _tamper(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, Tensor], Tensor | None]) -> list[str]:
    """Tensors of the scripted graph are changed on their way into the file; their names come back."""
    changed: list[str] = []

    def faulty(*arguments: Any, **options: Any) -> Graph:
        graph = finished(*arguments, **options)
        for name, tensor in [*graph.script.named_parameters(), *graph.script.named_buffers()]:
            new = change(name, tensor.detach())
            if new is not None:
                tensor.data.copy_(new)
                changed.append(name)
        return graph

    finished = export.artifact.writing.finished  # type: ignore[attr-defined]
    monkeypatch.setattr(export.artifact.writing, "finished", faulty)
    return changed


@pytest.mark.parametrize("dense_dtype", ["float32", "bfloat16"])
def test_a_graph_with_other_dense_weights_names_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense_dtype: str
) -> None:
    changed = _tamper(
        monkeypatch, lambda name, tensor: tensor + 1 if name.endswith("over_arch.model.1.bias") else None
    )
    with pytest.raises(
        VerificationError, match=r"output 'default', row \d+ of the samples: .* what the model"
    ):
        export_model(dlrm(), tmp_path / "a", ExportConfig(dense_dtype=dense_dtype))
    assert len(changed) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("targets", [(("cpu",),), (("cpu",), ("cpu", "cpu"))], ids=["one", "two"])
def test_a_graph_that_reads_other_rows_names_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: tuple[tuple[str, ...], ...]
) -> None:
    changed = _tamper(
        monkeypatch, lambda name, tensor: tensor.flip(0) if name.endswith("offsets_bytes") else None
    )
    with pytest.raises(VerificationError, match=r"output '\w+', row \d+ of the samples"):
        export_model(CASES["sequences"].make(), tmp_path / "a", ExportConfig(targets=targets))
    assert changed
    assert list(tmp_path.iterdir()) == []


def test_a_single_file_is_verified_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_other_rows(work: Path, *others: Path) -> None:
        copy = work.with_name("copy")
        shutil.copytree(work, copy)
        rows = np.fromfile(copy / ROWS_NAME, np.uint8)
        rows[1::64] ^= 0x08
        rows.tofile(copy / ROWS_NAME)
        write_apart(copy, *others)

    monkeypatch.setattr(single_file, "MOST_COPIED_BYTES", 0)
    monkeypatch.setattr(single_file, "write_apart", of_other_rows)
    with pytest.raises(VerificationError, match="the single file predicts otherwise than the directory"):
        export_model(bare(), tmp_path / "a.pt", ExportConfig(single_file=True))
    assert list(tmp_path.iterdir()) == []


def _outputs(*numbers: float) -> dict[str, Tensor]:
    return {"score": torch.tensor(numbers)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.1, -1.0])
def test_compare_names_output_row_difference_and_bound(bad: float) -> None:
    with pytest.raises(
        VerificationError, match=r"output 'score', row 2 of the samples: .* away from it, expected at"
    ):
        compare(_outputs(0.5, 0.25, bad), _outputs(0.5, 0.25, 1.0), 2.0**-10, "it")


def test_compare_wants_the_same_shapes() -> None:
    with pytest.raises(VerificationError, match=r"output 'score': got .* \[2\], expected .* \[1\], it"):
        compare(_outputs(1.0, 1.0), _outputs(1.0), None, "it")


def _integers(num_wrong: int) -> dict[str, Tensor]:
    """40 rows of two numbers beyond what float64 tells apart, of which some rows are wrong by 1."""
    found = torch.arange(80).view(40, 2) + 2**60
    found[:num_wrong, 1] += 1
    return {"ids": found}


def test_integers_are_equal_but_for_few_rows() -> None:
    assert compare(_integers(2), _integers(0), 2.0**-4, "it")["ids"].max_abs == 1.0
    with pytest.raises(
        VerificationError,
        match=rf"output 'ids', row 0 .*: got \[{2**60}, {2**60 + 2}\], expected \[{2**60}, {2**60 + 1}\], it; 3 of 40 "
        "rows differ, expected at most 2",
    ):
        compare(_integers(3), _integers(0), 2.0**-4, "it")
    one = {"ids": torch.tensor([1])}
    with pytest.raises(VerificationError, match="1 of 1 rows differ, expected at most 0"):
        compare(one, {"ids": torch.tensor([2])}, 2.0**-4, "it")
    with pytest.raises(VerificationError, match=r"got torch.float32 \[1\], expected torch.int64 \[1\]"):
        compare({"ids": torch.tensor([1.0])}, one, None, "it")
    compare({"ids": one["ids"][:0]}, {"ids": one["ids"][:0]}, 0.0, "it")


def test_compare_measures() -> None:
    found = compare(_outputs(1.0, 2.0), _outputs(1.5, 2.25), None, "it")["score"]
    assert (found.max_abs, found.mean_abs) == (0.5, 0.375)
    empty = compare({"score": torch.empty(0)}, {"score": torch.empty(0)}, 0.0, "it")["score"]
    assert (empty.max_abs, empty.mean_abs) == (0.0, 0.0)


def test_differences_are_the_artifacts_against_the_float_models(tmp_path: Path) -> None:
    report = export_model(bare(), tmp_path / "a")
    lossless = export_model(bare(), tmp_path / "b", ExportConfig(data_type=DataType.FP32))
    for output, difference in report.differences["cpu"].items():
        assert difference.max_abs > 1e-5 > lossless.differences["cpu"][output].max_abs
    told = load_artifact(tmp_path / "a").manifest.verification
    assert told["num_samples"] == report.num_samples == 256
    assert told["verified_on"] == {"cpu": "cpu"}
