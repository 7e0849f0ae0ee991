"""ExportedPrograms answer as TorchScript does, refuse what they would trust, and are loaded only by name.

Shape letters: B batch, Q contexts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.parts import read_manifest
from recsys.errors import (
    ArtifactError,
    ChecksumError,
    ExportError,
    ManifestError,
    MissingPartError,
    TargetError,
)
from recsys.inputs.signature import IdPolicy
from recsys.managed import LRU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from recsys.managed.embedding import ManagedCollisionEmbeddingBagCollection
from recsys.rows.format import quantize_rows
from tests.recsys.artifact.damage import Json, flip, lie, resize_part, same, truncate, without_torchscript
from tests.recsys.artifact.delta.deltas import stored_tables
from tests.recsys.artifact.test_tied_weights import FIRST, SECOND, Tied, answers, write
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import assert_close, batch_of

CONTEXT = ("user", "age")
KNOWN_IDS = (-(2**63), -7, 0, 10, 2**40, 2**63 - 1)
PART = "target-0.exported.pt2"


class EveryKind(nn.Module):
    """Weighted, pooled, unpooled and managed tables, of every policy, and layers with one number and with many."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plain = EmbeddingBagCollection(
            [bag("users", 50, 16, ["user"]), bag("goods", 30, 24, ["good", "last"], "MEAN")]
        )
        self.scored = EmbeddingBagCollection([bag("tags", 20, 8, ["tag"])], is_weighted=True)
        self.history = EmbeddingCollection([sequence("clicks", 40, 8, ["clicked"])])
        tables = [bag("raw", 10, 8, ["raw"])]
        known = MCHManagedCollisionModule(10, None, LRU_EvictionPolicy(), 1)
        known.train()(torch.tensor(KNOWN_IDS))
        self.managed = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables),
            ManagedCollisionCollection({"raw": known}, tables).eval(),
            embeddings_only=True,
        )
        self.layers = nn.Sequential(nn.Linear(64 + 8 + 8 + 8 + 3, 16), nn.ReLU(), nn.Linear(16, 6))
        self.temperature = nn.Parameter(torch.tensor([2.0]))

    def forward(
        self,
        age: Tensor,
        price: Tensor,
        plain: KeyedJaggedTensor,
        scored: KeyedJaggedTensor,
        history: KeyedJaggedTensor,
        managed: KeyedJaggedTensor,
    ) -> dict[str, Tensor]:
        clicked = self.history(history)["clicked"].to_padded_dense(4).sum(dim=1)
        pooled = [self.plain(plain).values(), self.scored(scored).values(), self.managed(managed)["raw"]]
        found = self.layers(torch.cat([age, price, clicked, *pooled], dim=1)) / self.temperature
        return {"score": found[:, 0].sigmoid(), "vectors": found[:, 2:].reshape(-1, 2, 2)}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    path = tmp_path_factory.mktemp("exported") / "both"
    config = ExportConfig(
        name="every",
        dense_widths={"age": 1, "price": 2},
        table_id_policies={"users": IdPolicy.HASH, "goods": IdPolicy.ZERO, "clicks": IdPolicy.FMIX64},
        context=CONTEXT,
        graph_format="both",
    )
    export_model(EveryKind().eval(), path, config)
    return path


@pytest.fixture
def copy(both: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(both, tmp_path / "copy"))


@pytest.fixture(scope="module")
def scripted(both: Path) -> LoadedArtifact:
    return load_artifact(both, scripted=True)


@pytest.fixture(scope="module")
def exported(both: Path) -> LoadedArtifact:
    return load_exported_artifact(both)


def batch(artifact: LoadedArtifact, num_rows: int, seed: int = 0) -> Batch:
    known = {"raw": torch.tensor(KNOWN_IDS)}
    return random_batch(artifact.signature, num_rows, torch.Generator().manual_seed(seed), known_ids=known)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 17, 64, 1001])
def test_batches_of_any_size_are_answered_as_by_torchscript(
    scripted: LoadedArtifact, exported: LoadedArtifact, num_rows: int
) -> None:
    inputs = batch(scripted, num_rows, num_rows).inputs()
    assert_close(exported.forward(*inputs), scripted.forward(*inputs))


@pytest.mark.parametrize("rows", [(), (0,), (1,), (3, 0, 2), (100,)])
def test_ranking_batches_are_answered_as_by_torchscript(
    scripted: LoadedArtifact, exported: LoadedArtifact, rows: tuple[int, ...]
) -> None:
    row_context = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64))
    contexts, candidates = batch(scripted, len(rows), 1), batch(scripted, sum(rows), 2)
    inputs = ranking_batch(scripted.signature, contexts, candidates, row_context).inputs()
    assert_close(exported.forward_ranking(*inputs), scripted.forward_ranking(*inputs))


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
def test_what_a_program_would_trust_is_refused(exported: LoadedArtifact, name: str) -> None:
    change, text = WRONG[name]
    sound = batch(exported, 6).inputs()
    inputs: list[Any] = list(sound)
    change(inputs)
    with pytest.raises(RuntimeError, match=text):
        exported.forward(*inputs)
    exported.forward(*sound)


@pytest.mark.parametrize("context", [-1, 2, 2**40])
def test_a_context_that_is_not_there_is_refused(exported: LoadedArtifact, context: int) -> None:
    row_context = torch.tensor([0, 1, 1])
    inputs = ranking_batch(exported.signature, batch(exported, 2), batch(exported, 3), row_context).inputs()
    inputs[-1] = torch.tensor([0, context, 1])
    with pytest.raises(RuntimeError, match="row_context: got a number outside of the 2 contexts"):
        exported.forward_ranking(*inputs)


@pytest.mark.parametrize("bad", [20, -1, 2**63 - 1, -(2**63)])
def test_an_id_outside_of_its_table_is_refused(exported: LoadedArtifact, bad: int) -> None:
    # The only bag is that of "tag", whose table rejects.
    names = [feature.name for feature in exported.signature.sparse]
    lengths = torch.zeros(len(names), dtype=torch.int64)
    lengths[names.index("tag")] = 1
    inputs = [torch.zeros(1, 1), torch.zeros(1, 2), lengths, torch.tensor([bad]), torch.ones(1)]
    for _ in range(3):
        with pytest.raises(RuntimeError):
            exported.forward(*inputs)
    inputs[3] = torch.tensor([19])
    exported.forward(*inputs)


def test_tensors_that_do_not_lie_in_order_are_read_right(
    exported: LoadedArtifact, scripted: LoadedArtifact
) -> None:
    inputs = batch(exported, 6).inputs()
    expected = scripted.forward(*inputs)
    inputs[_PRICE] = inputs[_PRICE].t().contiguous().t()
    inputs[_VALUES] = torch.stack([inputs[_VALUES], inputs[_VALUES]], dim=1)[:, 0]
    assert_close(exported.forward(*inputs), expected)


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


def test_deltas_change_rows_and_every_dense_weight(copy: Path, tmp_path: Path) -> None:
    scripted, exported = load_artifact(copy, scripted=True), load_exported_artifact(copy)
    inputs = batch(scripted, 9).inputs()
    before = exported.forward(*inputs)
    held = scripted.graphs.tensors()[0]
    assert {path: (t.dtype, t.shape) for path, t in exported.graphs.tensors()[0].items()} == {
        path: (t.dtype, t.shape) for path, t in held.items()
    }
    assert {tuple(t.shape) for t in held.values()} >= {(1,), (6,), (16, 91)}
    for artifact, name in ((scripted, "scripted"), (exported, "exported")):
        write_dense_delta(tmp_path / name, artifact)
    undo = apply(prepare(exported.rows, tmp_path / "exported"))
    apply(prepare(scripted.rows, tmp_path / "scripted"))
    after = exported.forward(*inputs)
    assert_close(after, scripted.forward(*inputs))
    assert not torch.equal(after["score"], before["score"])
    # As for profiles.
    assert_close(exported.module.forward(*inputs), after)
    apply(undo)
    assert same(exported.forward(*inputs), before)


def test_nothing_is_unpickled_unless_it_is_asked_for(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def load(*_: object, **__: object) -> object:
        raise Asked

    monkeypatch.setattr(torch.export, "load", load)
    assert isinstance(load_artifact(copy, scripted=True).graphs, LoadedGraphs)
    with pytest.raises(TargetError, match="target 'cpu': holds no TorchScript, and "):
        load_artifact(without_torchscript(copy, tmp_path / "a"), scripted=True)
    flip(copy / PART, 40)
    with pytest.raises(ChecksumError, match=f"part '{PART}'"):
        load_exported_artifact(copy)
    flip(copy / PART, 40)
    with pytest.raises(Asked):
        load_exported_artifact(copy)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda file: flip(file, -40), ChecksumError),
        (lambda file: truncate(file, -1), ArtifactError),
        (lambda file: file.unlink(), MissingPartError),
    ],
)
def test_a_damaged_part_is_not_loaded(
    copy: Path, damage: Callable[[Path], object], kind: type[Exception]
) -> None:
    damage(copy / PART)
    with pytest.raises(kind, match=f"part '{PART}'"):
        load_exported_artifact(copy)


@pytest.mark.parametrize("content", [b"", b"no zip archive", b"PK\x05\x06" + bytes(18)])
def test_a_part_that_is_no_program_is_one_error(copy: Path, content: bytes) -> None:
    (copy / PART).write_bytes(content)
    resize_part(copy, PART)
    with pytest.raises(ManifestError, match=f"part '{PART}': not readable as an ExportedProgram"):
        load_exported_artifact(copy)


def test_an_artifact_without_it_says_so(copy: Path) -> None:
    lie(copy, lambda data: [graph.pop("exported") for graph in _graphs(data)])
    with pytest.raises(
        TargetError, match="holds no ExportedProgram, expected one; run recsys-export --format both"
    ):
        load_exported_artifact(copy)


def _graphs(data: Json) -> list[Json]:
    (target,) = data["targets"]
    return [target, target["ranking"]]


def _as_compiled(data: Json) -> None:
    """Write the fields as releases that compiled graphs did."""
    for graph in _graphs(data):
        graph["compiled"] = {"package": "gone.pt2", "exported": graph.pop("exported"), "isa": "x86-64-v3"}
        program = graph.pop("program", None)
        graph["compiled"] |= {"torch": "2.11.0", "dense": {}} | ({"operators": program} if program else {})


def test_manifests_with_compiled_graphs_are_read(copy: Path, tmp_path: Path) -> None:
    programs = [graph.program for graph in read_manifest(copy).targets[0].graphs]
    lie(copy, _as_compiled)
    assert isinstance(load_artifact(copy).graphs, LoadedGraphs)
    found = read_manifest(copy).targets[0]
    assert [(graph.exported is None, graph.program) for graph in found.graphs] == [(False, None)] * 2
    alone = read_manifest(without_torchscript(copy, tmp_path / "a")).targets[0]
    assert [graph.program for graph in alone.graphs] == programs


def _drop_ranking(data: Json) -> None:
    del data["targets"][0]["ranking"]["exported"]


def test_forms_of_other_formats_are_refused(copy: Path) -> None:
    lie(copy, _drop_ranking)
    with pytest.raises(ManifestError, match="got other graph formats than the plain form's"):
        load_artifact(copy)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"graph_format": "onnx"}, "format: got 'onnx', expected torchscript or pt2 or both"),
        ({"targets": (("cpu",), ("cuda:0",))}, r"for targets \['cuda:0'\], expected 'torchscript'"),
        ({"single_file": True}, "for a single file, expected 'torchscript'"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_work_starts(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        ExportConfig(**{"graph_format": "pt2", **options})


def test_a_delta_changes_all_layers_that_share_a_weight(tmp_path: Path) -> None:
    config = ExportConfig(context=("f",), graph_format="both")
    export_model(Tied().eval(), tmp_path / "a", config)
    scripted, exported = (
        load_artifact(tmp_path / "a", scripted=True),
        load_exported_artifact(tmp_path / "a"),
    )
    before = answers(exported)
    for name, weight in ((FIRST, torch.rand(8, 8)), ("model.norm.bias", torch.rand(8))):
        for artifact in (scripted, exported):
            apply(prepare(artifact.rows, write(tmp_path / f"{name} {id(artifact)}", artifact, name, weight)))
    for found, expected, old in zip(answers(exported), answers(scripted), before, strict=True):
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(found, old)
    for form in exported.graphs.tensors():
        assert FIRST in form
        assert SECOND not in form


def test_an_export_says_that_servers_would_refuse_it(tmp_path: Path) -> None:
    config = ExportConfig(dense_dtype="bfloat16", graph_format="pt2")
    report = export_model(Tied().eval(), tmp_path / "a", config)
    assert [note for note in report.notes if "servers refuse this artifact, an ExportedProgram alone" in note]
    with pytest.raises(
        TargetError, match="holds no TorchScript, and no program; run recsys-export --format both"
    ):
        load_artifact(tmp_path / "a")
    exported = load_exported_artifact(tmp_path / "a")
    assert exported.manifest.format_version == 2
    exported.forward(*batch_of(exported.signature, 3).inputs())
