"""Compiled graphs answer as TorchScript does, and refuse what they would trust.

Shape letters: B batch, Q contexts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.delta.delta import DeltaConfig, export_delta
from recsys.artifact.compiled import CompiledGraphs
from recsys.artifact.delta import apply, prepare
from recsys.artifact.delta_file import DeltaWriter
from recsys.artifact.delta_header import DeltaHeader
from recsys.artifact.load import LoadedArtifact, load_artifact, load_compiled_artifact
from recsys.artifact.parts import read_manifest
from recsys.artifact.ranking import ranking_batch
from recsys.artifact.samples import Batch, random_batch
from recsys.errors import (
    ArtifactError,
    ChecksumError,
    ManifestError,
    MissingPartError,
    TargetError,
)
from recsys.rows.format import quantize_rows
from tests.recsys.artifact.damage import Json, flip, lie, manifest_of, resize_part
from tests.recsys.artifact.deltas import stored_tables
from tests.support.compiled_model import KNOWN_IDS, EveryKind, every_kind, needs_compiler, without_torchscript
from tests.support.export_models import assert_close

pytestmark = needs_compiler


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    path = tmp_path_factory.mktemp("compiled") / "both"
    every_kind(path)
    return path


@pytest.fixture
def pt2(both: Path, tmp_path: Path) -> Path:
    return without_torchscript(both, tmp_path / "pt2")


@pytest.fixture(scope="session")
def scripted(both: Path) -> LoadedArtifact:
    return load_artifact(both)


@pytest.fixture(scope="session")
def compiled(both: Path) -> LoadedArtifact:
    return load_compiled_artifact(both)


def batch(artifact: LoadedArtifact, num_rows: int, seed: int = 0) -> Batch:
    known = {"raw": torch.tensor(KNOWN_IDS)}
    return random_batch(artifact.signature, num_rows, torch.Generator().manual_seed(seed), known_ids=known)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 5, 8, 17, 64, 1001])
def test_batches_of_any_size_are_answered_as_by_torchscript(
    scripted: LoadedArtifact, compiled: LoadedArtifact, num_rows: int
) -> None:
    inputs = batch(scripted, num_rows, num_rows).inputs()
    assert_close(compiled.forward(*inputs), scripted.forward(*inputs))


@pytest.mark.parametrize("rows", [(), (0,), (1,), (3, 0, 2), (100,)])
def test_ranking_batches_are_answered_as_by_torchscript(
    scripted: LoadedArtifact, compiled: LoadedArtifact, rows: tuple[int, ...]
) -> None:
    row_context = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64))
    contexts, candidates = batch(scripted, len(rows), 1), batch(scripted, sum(rows), 2)
    inputs = ranking_batch(scripted.signature, contexts, candidates, row_context).inputs()
    assert_close(compiled.forward_ranking(*inputs), scripted.forward_ranking(*inputs))


def test_the_torchscript_graph_is_taken_where_there_is_one(both: Path, pt2: Path) -> None:
    assert not isinstance(load_artifact(both).graphs, CompiledGraphs)
    alone = load_artifact(pt2)
    assert isinstance(alone.graphs, CompiledGraphs)
    with pytest.raises(TargetError, match="loaded as compiled graphs, which are no TorchScript"):
        _ = alone.module
    assert read_manifest(both).format_version == 1
    assert read_manifest(pt2).format_version == 2


def _swap(at: int, make: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], None]:
    def change(inputs: list[Tensor]) -> None:
        inputs[at] = make(inputs[at])

    return change


_AGE, _PRICE, _LENGTHS, _VALUES, _WEIGHTS = range(5)
WRONG = {
    "lengths for another batch": (_swap(_LENGTHS, lambda x: x[:-6]), "dense input 'age': got shape"),
    "lengths that no batch has": (_swap(_LENGTHS, lambda x: x[:-1]), "dense input 'age': got shape"),
    "a negative length": (_swap(_LENGTHS, lambda x: x - 9), "lengths: got one below 0"),
    "a long length": (_swap(_LENGTHS, lambda x: x + 2**62), "lengths: got one below 0 or above"),
    "another sum": (_swap(_VALUES, lambda x: x[:-1]), "lengths: got a sum"),
    "fewer weights": (_swap(_WEIGHTS, lambda x: x[:-1]), "weights: got"),
    "wide": (_swap(_PRICE, lambda x: torch.cat([x, x], dim=1)), "dense input 'price': got shape"),
    "other rows": (_swap(_AGE, lambda x: x[:-1]), "dense input 'age': got shape"),
    "flat": (_swap(_AGE, lambda x: x.view(-1)), "age: got torch.float32"),
    "double": (_swap(_AGE, lambda x: x.double()), "age: got torch.float64"),
    "short IDs": (_swap(_VALUES, lambda x: x.int()), "values: got torch.int32"),
    "one too few": (lambda inputs: inputs.pop(), "expected 'weights' too"),
    "one too many": (lambda inputs: inputs.append(inputs[0]), "inputs: got 6, expected 5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_code_would_trust_is_refused(compiled: LoadedArtifact, name: str) -> None:
    change, text = WRONG[name]
    sound = batch(compiled, 6).inputs()
    inputs: list[Any] = list(sound)
    change(inputs)
    with pytest.raises(RuntimeError, match=text):
        compiled.forward(*inputs)
    compiled.forward(*sound)


@pytest.mark.parametrize("context", [-1, 2, 2**40])
def test_a_context_that_is_not_there_is_refused(compiled: LoadedArtifact, context: int) -> None:
    row_context = torch.tensor([0, 1, 1])
    inputs = ranking_batch(compiled.signature, batch(compiled, 2), batch(compiled, 3), row_context).inputs()
    inputs[-1] = torch.tensor([0, context, 1])
    with pytest.raises(RuntimeError, match="row_context: got a number outside of the 2 contexts"):
        compiled.forward_ranking(*inputs)


@pytest.mark.parametrize("bad", [20, -1, 2**63 - 1, -(2**63)])
def test_an_id_outside_of_its_table_is_refused(compiled: LoadedArtifact, bad: int) -> None:
    # The only bag is that of "tag", whose table rejects.
    names = [feature.name for feature in compiled.signature.sparse]
    lengths = torch.zeros(len(names), dtype=torch.int64)
    lengths[names.index("tag")] = 1
    inputs = [torch.zeros(1, 1), torch.zeros(1, 2), lengths, torch.tensor([bad]), torch.ones(1)]
    for _ in range(3):
        with pytest.raises(RuntimeError):
            compiled.forward(*inputs)
    inputs[3] = torch.tensor([19])
    compiled.forward(*inputs)


def test_tensors_that_do_not_lie_in_order_are_read_right(
    compiled: LoadedArtifact, scripted: LoadedArtifact
) -> None:
    inputs = batch(compiled, 6).inputs()
    expected = scripted.forward(*inputs)
    inputs[_PRICE] = inputs[_PRICE].t().contiguous().t()
    inputs[_VALUES] = torch.stack([inputs[_VALUES], inputs[_VALUES]], dim=1)[:, 0]
    assert_close(compiled.forward(*inputs), expected)


def _set(key: str, value: object) -> Callable[[Json], None]:
    return lambda data: data["targets"][0]["compiled"].update({key: value})


def _drop_ranking(data: Json) -> None:
    del data["targets"][0]["ranking"]["compiled"]


UNUSABLE = {
    "another torch": (
        _set("torch", "2.99.1+cpu"),
        TargetError,
        "compiled for torch 2.99.1.cpu, but this is torch",
    ),
    "unknown instructions": (
        _set("isa", "x86-64-v9"),
        TargetError,
        "instructions 'x86-64-v9', expected one of",
    ),
    "no package": (_set("package", "x.pt2"), ManifestError, r"skeletons \['x.pt2'\] are not among the parts"),
    "a package elsewhere": (
        _set("package", "../x.pt2"),
        ManifestError,
        "package: got '../x.pt2', expected a plain",
    ),
    "dense a list": (_set("dense", []), ManifestError, "compiled.dense: got '.*', expected an object"),
    "a dense weight of texts": (
        _set("dense", {"a": {"dtype": "str", "shape": []}}),
        ManifestError,
        "dtype: got 'str'",
    ),
    "only one form": (_drop_ranking, ManifestError, "skeleton: got 'None'"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_run_here_is_refused_before_it_is_loaded(pt2: Path, name: str) -> None:
    change, kind, text = UNUSABLE[name]
    lie(pt2, change)
    with pytest.raises(kind, match=text):
        load_artifact(pt2)


def test_a_processor_that_lacks_instructions_is_named(pt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "fma3": True, "bmi2": True})
    with pytest.raises(TargetError, match="compiled for x86-64-v3, but this processor lacks f16c"):
        load_artifact(pt2)


def test_forms_of_other_formats_are_refused(both: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(both, tmp_path / "a"))
    lie(path, _drop_ranking)
    with pytest.raises(ManifestError, match="got other graph formats than the plain form's"):
        load_artifact(path)


def test_an_artifact_without_compiled_graphs_says_so(both: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(both, tmp_path / "a"))

    def drop(data: Json) -> None:
        for graph in (data["targets"][0], data["targets"][0]["ranking"]):
            del graph["compiled"]

    lie(path, drop)
    load_artifact(path)
    with pytest.raises(
        TargetError, match="holds no compiled graph, expected one; export it with --format pt2"
    ):
        load_compiled_artifact(path)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda file: flip(file, -40), ChecksumError),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), ArtifactError),
        (lambda file: file.unlink(), MissingPartError),
    ],
)
def test_a_damaged_package_is_not_run(
    pt2: Path, damage: Callable[[Path], object], kind: type[Exception]
) -> None:
    damage(pt2 / manifest_of(pt2)["targets"][0]["compiled"]["package"])
    with pytest.raises(kind, match=r"part 'target-0.pt2'"):
        load_artifact(pt2)


@pytest.mark.parametrize("content", [b"", b"no zip archive", b"PK\x05\x06" + bytes(18)])
def test_a_package_that_is_none_is_one_error(pt2: Path, content: bytes) -> None:
    name = manifest_of(pt2)["targets"][0]["compiled"]["package"]
    (pt2 / name).write_bytes(content)
    resize_part(pt2, name)
    with pytest.raises(ManifestError, match=r"part 'target-0.pt2': not readable as a compiled graph"):
        load_artifact(pt2)


def write_dense_delta(path: Path, artifact: LoadedArtifact) -> None:
    """Two rows, and other numbers for each floating point weight, the same for each format."""
    rows, generator = artifact.rows, torch.Generator().manual_seed(0)
    header = DeltaHeader(model="every", artifact=rows.digest, base=rows.state, num_dense_left=0)
    writer = DeltaWriter(path, header)
    table = stored_tables(rows)["plain.users"]
    floats = torch.randn(2, table.embedding_dim, generator=generator)
    writer.add(table, torch.tensor([0, 7]), quantize_rows(floats, table.data_type))
    for name, tensor in sorted(artifact.graphs.tensors()[0].items()):
        if tensor.is_floating_point():
            writer.add_dense(name, torch.randn(tensor.shape, generator=generator))
    writer.finish()


def test_deltas_change_rows_and_every_dense_weight(both: Path, pt2: Path, tmp_path: Path) -> None:
    scripted, alone = load_artifact(both), load_artifact(pt2)
    inputs = batch(scripted, 9).inputs()
    before = alone.forward(*inputs)
    held = scripted.graphs.tensors()[0]
    assert {path: (t.dtype, t.shape) for path, t in alone.graphs.tensors()[0].items()} == {
        path: (t.dtype, t.shape) for path, t in held.items()
    }
    assert {tuple(t.shape) for t in held.values()} >= {(1,), (6,), (16, 91)}
    for artifact, name in ((scripted, "scripted"), (alone, "alone")):
        write_dense_delta(tmp_path / name, artifact)
    undo = apply(prepare(alone.rows, tmp_path / "alone"))
    apply(prepare(scripted.rows, tmp_path / "scripted"))
    after = alone.forward(*inputs)
    assert_close(after, scripted.forward(*inputs))
    assert not torch.equal(after["score"], before["score"])
    apply(undo)
    assert torch.equal(alone.forward(*inputs)["score"], before["score"])


def test_deltas_need_no_file_of_that_name(pt2: Path, tmp_path: Path) -> None:
    alone = load_artifact(pt2)
    before = alone.forward(*batch(alone, 3).inputs())
    write_dense_delta(tmp_path / "delta", alone)
    (pt2 / "target-0.pt2").unlink()
    apply(prepare(alone.rows, tmp_path / "delta"))
    assert not torch.equal(alone.forward(*batch(alone, 3).inputs())["score"], before["score"])


def test_a_delta_of_checkpoints_needs_no_torchscript(both: Path, pt2: Path, tmp_path: Path) -> None:
    old, new = EveryKind().eval(), EveryKind().eval()
    with torch.no_grad():
        new.plain.embedding_bags["users"].weight[3] += 1.0
        for parameter in (new.layers[0].weight, new.layers[2].bias, new.temperature):
            parameter += 0.5
    made = {}
    for path in (both, pt2):
        report = export_delta(old, new, tmp_path / f"{path.name}.delta", DeltaConfig(artifact=path))
        assert report.num_dense == 3
        made[path] = load_artifact(path)
        apply(prepare(made[path].rows, tmp_path / f"{path.name}.delta"))
    inputs = batch(made[both], 5).inputs()
    assert_close(made[pt2].forward(*inputs), made[both].forward(*inputs))
