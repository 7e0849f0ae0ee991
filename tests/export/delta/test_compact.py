"""Compaction: one delta instead of a chain, for models in any state of the chain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from export.cli import main
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.load import load_artifact
from recsys.errors import DeltaError, ExportError
from tests.export.delta.test_delta import rows_of, trained, with_dense
from tests.recsys.artifact.delta.deltas import digest_of, header_of
from tests.support.models.export_models import CopyCase, batch_of, dlrm


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, copy_case: CopyCase) -> Path:
    """``model.artifact``, ``0.delta`` to ``3.delta``, and fresh exports ``2.fresh`` and ``3.fresh``."""
    folder = tmp_path_factory.mktemp("chain")
    model = dlrm()
    copy_case("dlrm", folder / "model.artifact")
    after: list[Path] = []
    for i in range(4):
        new = with_dense(trained(model, share=0.3, seed=i), seed=i) if i % 2 else trained(model, seed=i)
        path = folder / f"{i}.delta"
        export_delta(model, new, path, DeltaConfig(artifact=folder / "model.artifact", after=tuple(after)))
        after.append(path)
        model = new
        if i >= 2:
            export_model(model, folder / f"{i}.fresh")
    return folder


def deltas(folder: Path, *numbers: int) -> list[Path]:
    return [folder / f"{i}.delta" for i in numbers]


def test_it_gives_what_the_chain_gives_and_its_successor_follows(chain: Path, tmp_path: Path) -> None:
    report = compact(deltas(chain, 2, 0, 1), tmp_path / "c.delta")
    assert report.num_replaced == 3
    assert report.digest == digest_of(chain / "2.delta")
    loaded = load_artifact(chain / "model.artifact")
    apply(prepare(loaded.rows, tmp_path / "c.delta"))
    assert loaded.rows.state == digest_of(chain / "2.delta")
    for name, path in (("2.fresh", None), ("3.fresh", chain / "3.delta")):
        if path is not None:
            apply(prepare(loaded.rows, path))
        fresh = load_artifact(chain / name)
        assert torch.equal(rows_of(loaded), rows_of(fresh))
        inputs = batch_of(fresh.signature, 30).inputs()
        expected = fresh.forward(*inputs)
        for output, found in loaded.forward(*inputs).items():
            assert torch.equal(found, expected[output])


def test_a_model_in_the_middle_of_the_chain_takes_it(chain: Path, tmp_path: Path) -> None:
    compact(deltas(chain, 0, 1, 2), tmp_path / "c.delta")
    loaded = load_artifact(chain / "model.artifact")
    apply(prepare(loaded.rows, chain / "0.delta"))
    before, state = rows_of(loaded).clone(), loaded.rows.state
    undo = apply(prepare(loaded.rows, tmp_path / "c.delta"))
    assert torch.equal(rows_of(loaded), rows_of(load_artifact(chain / "2.fresh")))
    apply(undo)
    assert loaded.rows.state == state
    assert torch.equal(rows_of(loaded), before)


def test_a_model_at_the_end_of_the_chain_refuses_it(chain: Path, tmp_path: Path) -> None:
    compact(deltas(chain, 0, 1), tmp_path / "c.delta")
    loaded = load_artifact(chain / "model.artifact")
    for path in deltas(chain, 0, 1):
        apply(prepare(loaded.rows, path))
    with pytest.raises(DeltaError, match="in the order in which they were made"):
        prepare(loaded.rows, tmp_path / "c.delta")


def test_a_compacted_delta_is_compacted_with_its_successors(chain: Path, tmp_path: Path) -> None:
    compact(deltas(chain, 0, 1), tmp_path / "a.delta")
    # The ones that it replaces may still lie beside it.
    compact([tmp_path / "a.delta", *deltas(chain, 0, 1, 2, 3)], tmp_path / "b.delta")
    compact([chain], tmp_path / "c.delta")  # a folder
    with DeltaFile(tmp_path / "b.delta") as made, DeltaFile(tmp_path / "c.delta") as whole:
        assert (
            made.header.replaces == whole.header.replaces == tuple(map(digest_of, deltas(chain, 0, 1, 2, 3)))
        )
        for one, other in zip(made.header.tables, whole.header.tables, strict=True):
            assert all(torch.equal(*both) for both in zip(made.read(one), whole.read(other), strict=True))


def test_what_is_no_chain_is_refused(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected one chain: a delta is missing"):
        compact(deltas(chain, 0, 2), tmp_path / "c.delta")
    export_model(dlrm(seed=5), tmp_path / "other.artifact")
    other = DeltaConfig(artifact=tmp_path / "other.artifact")
    export_delta(dlrm(seed=5), trained(dlrm(seed=5)), tmp_path / "other.delta", other)
    with pytest.raises(ExportError, match="expected those of one artifact"):
        compact([*deltas(chain, 0), tmp_path / "other.delta"], tmp_path / "c.delta")
    export_delta(
        dlrm(),
        trained(dlrm(), seed=8),
        tmp_path / "fork.delta",
        DeltaConfig(artifact=chain / "model.artifact"),
    )
    with pytest.raises(ExportError, match=r"'fork.delta'\] follow other states"):
        compact([*deltas(chain, 0, 1), tmp_path / "fork.delta"], tmp_path / "c.delta")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match=r"a folder without files \*.delta"):
        compact([tmp_path / "empty"], tmp_path / "c.delta")
    assert not (tmp_path / "c.delta").exists()


def test_the_command(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "c.delta")
    assert main(["--compact", *map(str, deltas(chain, 0, 1)), "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_replaced"] == 2
    assert header_of(tmp_path / "c.delta")["format_version"] == 3
    assert main(["--compact", str(chain), "--out", out]) == 1
    assert "pass --force" in capsys.readouterr().err
    assert main(["--compact", str(chain), "--out", out, "--force"]) == 0
    assert "4 deltas in one" in capsys.readouterr().out
    assert main(["--compact", str(chain)]) == 2
    assert "--out: missing" in capsys.readouterr().err
    assert main(["--compact", str(chain), "--out", out, "--dtype", "int4"]) == 2
    assert "--dtype: got it, expected none with --compact" in capsys.readouterr().err
