"""Programs: a part of the artifact that the native kernels run, against TorchScript by torch's operators."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from export.config import ExportConfig
from export.graph.ranking import jagged_places
from export.lower.spaces.sinking import _Sinking
from export.pipeline import export_model
from export.verify.compare import LINEAR_TOLERANCES
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.samples import Batch
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.errors import ChecksumError, ManifestError, TargetError, VerificationError
from recsys.inputs.signature import IdPolicy
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.sharding.plan.plan import ShardingPlan
from tests.export.lower.test_lowering import FORMED, LOWERED
from tests.models.archetypes import ARCHETYPES
from tests.native.models.test_model import batches, python_answer
from tests.native.program_models import MODELS, assert_near, loaded, ranking_inputs
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.damage import Json, flip, lie, manifest_of, resize_part, same, without_torchscript
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import CASES, batch_of

pytestmark = needs_kernels
PART = "program.safetensors"


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DLRM. Not to be written to."""
    path = tmp_path_factory.mktemp("programs") / "dlrm"
    loaded(path, MODELS["dlrm"]())
    return path


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    model = NativeModel()
    yield model
    assert model.close() == 0


@pytest.fixture
def artifact(dlrm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dlrm, tmp_path / "dlrm"))


@pytest.fixture
def alone(dlrm: Path, tmp_path: Path) -> Path:
    """Without TorchScript."""
    return without_torchscript(dlrm, tmp_path / "alone")


def set_linear_dtype(path: Path, dtype: str) -> None:
    """Let a manifest name another type, where an export would have put it."""

    def change(data: Json) -> None:
        (target,) = data["targets"]
        fields = list(target.items())
        if dtype != "float32":
            fields.insert(list(target).index("dense_dtype") + 1, ("linear_dtype", dtype))
        data["targets"] = [dict(fields)]
        data["answers"]["tolerance"] = LINEAR_TOLERANCES[dtype]

    lie(path, change)


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_a_program_predicts_what_torchscript_does(artifact: Path, dtype: str) -> None:
    set_linear_dtype(artifact, dtype)
    own, plain = load_artifact(artifact), load_artifact(artifact, scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    assert isinstance(plain.graphs, LoadedGraphs)
    assert (own.runs_program, plain.runs_program) == (True, False)
    for num_rows in (0, 1, 2, 49, 300):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert_all_near(own.forward(*inputs), plain.forward(*inputs), dtype)
        assert same(plain.forward(*inputs), own.scripted().calls[0](*inputs))


def test_no_torchscript_is_needed(dlrm: Path, alone: Path) -> None:
    expected, found = load_artifact(dlrm), load_artifact(alone)
    assert isinstance(found.graphs, ProgramGraphs)
    assert found.runs_program
    inputs = batch_of(expected.signature, 5).inputs()
    assert same(found.forward(*inputs), expected.forward(*inputs))
    with pytest.raises(
        TargetError, match="holds no TorchScript, expected it; run recsys-export --format both"
    ):
        _ = found.module


@needs_tool
@pytest.mark.parametrize("kept", ["program", "neither"])
def test_without_a_graph_that_runs_the_command_is_named(native: NativeModel, alone: Path, kept: str) -> None:
    if kept == "neither":
        lie(alone, lambda data: data["targets"][0].pop("program"))
    reason = "no program" if kept == "neither" else "TorchScript is asked for"
    with pytest.raises(
        TargetError,
        match=rf"target 'cpu': holds no TorchScript, and {reason}; run recsys-export --format both \(an Exported",
    ):
        load_artifact(alone, scripted=True)
    options = {"scripted": kept == "program"}
    assert_same_error(lambda: native.open(alone, **options), lambda: load_artifact(alone, **options))


@pytest.mark.parametrize("name", ["low_rank_dcn", "full_rank_dcn", "deepfm", "mmoe", "two_towers"])
def test_models_of_the_zoo_have_programs_of_both_forms(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", MODELS[name](), context=("dense_features", "f0", "f2"))
    assert isinstance(own.graphs, ProgramGraphs)
    for num_rows in (1, 50):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert_all_near(own.forward(*inputs), plain.forward(*inputs))
        inputs = ranking_inputs(own, (num_rows, 2))
        assert_all_near(own.forward_ranking(*inputs), plain.forward_ranking(*inputs))


def on_one_and_two_devices(path: Path, name: str) -> Iterator[LoadedArtifact]:
    """An archetype for each target, as a program."""
    case = ARCHETYPES[name]
    torch.manual_seed(0)
    config = ExportConfig(targets=(("cpu",), ("cpu", "cpu")), **case.options)
    export_model(case.served(case.make().eval()), path, config)
    for target in ("cpu", "cpu,cpu"):
        own = load_artifact(path, target=target)
        assert isinstance(own.graphs, ProgramGraphs)
        yield own


@pytest.mark.parametrize("name", [*LOWERED, *FORMED])
def test_archetypes_have_programs_like_their_graphs(tmp_path: Path, name: str) -> None:
    for own in on_one_and_two_devices(tmp_path / "a", name):
        plain = load_artifact(tmp_path / "a", target=own.target_name, scripted=True)
        inputs = [batch_of(own.signature, num_rows, seed=num_rows).inputs() for num_rows in (1, 2, 49, 130)]
        for batch in inputs:
            torch.testing.assert_close(own.forward(*batch), plain.forward(*batch), rtol=1e-5, atol=2e-6)
        # A row has the same bits in every batch.
        one = batch_of(own.signature, 130, seed=130)
        assert same(
            {name: values[-1:] for name, values in own.forward(*one.inputs()).items()},
            own.forward(*last_row(one)),
        )


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("bst", ("history", "user")),
        ("sasrec", ("history",)),
        ("bert4rec", ("history",)),
        ("din", ("history", "user")),
        ("din", ("target", "dense_features")),
        ("din", ("history", "target")),
    ],
)
def test_sequences_of_contexts_are_read_once(tmp_path: Path, name: str, context: tuple[str, ...]) -> None:
    case = ARCHETYPES[name]
    torch.manual_seed(0)
    export_model(case.make().eval(), tmp_path / "a", ExportConfig(context=context, **case.options))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    for num_rows, num_contexts in ((1, 1), (50, 3)):
        inputs = ranking_inputs(own, (num_rows, num_contexts))
        torch.testing.assert_close(
            own.forward_ranking(*inputs), plain.forward_ranking(*inputs), rtol=1e-5, atol=2e-6
        )


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_layers_over_places_multiply_in_other_types(tmp_path: Path, dtype: str) -> None:
    case = ARCHETYPES["bst"]
    torch.manual_seed(0)
    model = case.make().eval()
    export_model(model, tmp_path / "a", ExportConfig(linear_dtype=dtype, **case.options))
    export_model(model, tmp_path / "b", ExportConfig(**case.options))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "b", scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    inputs = batch_of(own.signature, 60).inputs()
    tolerance = LINEAR_TOLERANCES[dtype]
    torch.testing.assert_close(own.forward(*inputs), plain.forward(*inputs), rtol=tolerance, atol=tolerance)


def test_deltas_change_whole_numbers_and_what_is_computed_of_weights(tmp_path: Path) -> None:
    case = ARCHETYPES["hstu"]
    torch.manual_seed(0)
    model = case.make().eval()
    export_model(model, tmp_path / "a", ExportConfig(**case.options))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    changed = {
        f"model.{name}": tensor.flip(0)
        for name, tensor in model.state_dict().items()
        if name.endswith(("distances", "by_place", "by_time.weight"))
    }
    assert {tensor.dtype for tensor in changed.values()} == {torch.int64, torch.float32}
    inputs = batch_of(own.signature, 40).inputs()
    before = own.forward(*inputs)
    for artifact, name in ((own, "own"), (plain, "plain")):
        write_delta(tmp_path / name, artifact, changed)
        apply(prepare(artifact.rows, tmp_path / name))
    torch.testing.assert_close(own.forward(*inputs), plain.forward(*inputs), rtol=1e-5, atol=1e-6)
    assert not same(own.forward(*inputs), before)


def assert_all_near(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], dtype: str = "float32"
) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert_near(found[name], values, dtype)


def last_row(batch: Batch) -> list[Tensor]:
    """Return the inputs of the last row of a batch."""
    bags = torch.split(batch.values, batch.lengths.tolist())[batch.num_rows - 1 :: batch.num_rows]
    lengths = torch.tensor([len(bag) for bag in bags])
    return [*(dense[-1:] for dense in batch.dense), lengths, torch.cat(bags)]


class Pooled(nn.Module):
    """A layer over everything that a collection returns, side by side."""

    def __init__(self, tables: EmbeddingBagCollection) -> None:
        super().__init__()
        self.tables = tables
        configs = tables.embedding_bag_configs()
        self.over = nn.Linear(sum(table.embedding_dim * len(table.feature_names) for table in configs), 3)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        score: Tensor = self.over(self.tables(features).values())
        return score


@pytest.mark.parametrize("policy", [IdPolicy.REJECT, IdPolicy.HASH, IdPolicy.ZERO, IdPolicy.FMIX64])
@pytest.mark.parametrize("data_type", [DataType.INT4, DataType.INT8, DataType.FP16])
def test_lookups_of_all_kinds_have_programs(tmp_path: Path, policy: IdPolicy, data_type: DataType) -> None:
    # Widths that stored rows pad, with sums and means in turns, weights, and a feature in two tables.
    tables = [bag("t", 20, 10, ["f", "g"]), bag("u", 30, 7, ["h"], "MEAN"), bag("v", 9, 10, ["f"])]
    model = Pooled(EmbeddingBagCollection(tables, is_weighted=True))
    export_model(model.eval(), tmp_path / "a", ExportConfig(id_policy=policy, data_type=data_type))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    for num_rows in (1, 50):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert_all_near(own.forward(*inputs), plain.forward(*inputs))


def test_tables_cut_by_rows_and_columns_are_looked_up_whole(tmp_path: Path) -> None:
    tables = EmbeddingBagCollection([bag("t", 20, 16, ["f", "g"]), bag("u", 30, 16, ["h"], "MEAN")])
    rows = [{"shard_offsets": [at, 0], "shard_sizes": [10, 16], "rank": at // 10} for at in (0, 10)]
    columns = [{"shard_offsets": [0, at], "shard_sizes": [30, 8], "rank": at // 8} for at in (0, 8)]
    by_table = {
        "t": {"sharding_type": "row_wise", "shards": rows},
        "u": {"sharding_type": "column_wise", "shards": columns},
    }
    plan = ShardingPlan.from_json({"tables": by_table})
    export_model(Pooled(tables).eval(), tmp_path / "a", ExportConfig(targets=(("cpu", "cpu"),), plan=plan))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", scripted=True)
    assert isinstance(own.graphs, ProgramGraphs)
    for num_rows in (1, 50):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        torch.testing.assert_close(own.forward(*inputs), plain.forward(*inputs), rtol=1e-5, atol=1e-6)


def write_delta(path: Path, artifact: LoadedArtifact, weights: Mapping[str, Tensor]) -> None:
    """Write a delta of dense weights."""
    rows = artifact.rows
    header = DeltaHeader(model="model", artifact=rows.digest, base=rows.state, num_dense_left=0)
    writer = DeltaWriter(path, header)
    for name, weight in weights.items():
        writer.add_dense(name, weight)
    writer.finish()


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_deltas_pack_the_dense_weights_again(artifact: Path, alone: Path, tmp_path: Path, dtype: str) -> None:
    for each in (artifact, alone):
        set_linear_dtype(each, dtype)
    own, stored = load_artifact(artifact), load_artifact(alone)
    inputs = batch_of(stored.signature, 60, seed=1).inputs()
    before = stored.forward(*inputs)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in stored.graphs.tensors()[0].items()
        if tensor.is_floating_point()
    }
    for loading, name in ((own, "own"), (stored, "stored")):
        write_delta(tmp_path / name, loading, weights)
    apply(prepare(own.rows, tmp_path / "own"))
    undo = apply(prepare(stored.rows, tmp_path / "stored"))
    after = stored.forward(*inputs)
    assert same(after, own.forward(*inputs))
    if dtype == "float32":
        assert_all_near(after, own.scripted().calls[0](*inputs))
    assert not same(after, before)
    apply(undo)
    assert same(stored.forward(*inputs), before)


def test_parts_of_earlier_releases_take_the_weights_that_they_read(artifact: Path) -> None:
    expected = load_artifact(artifact).graphs.tensors()[0]
    part = with_header((artifact / PART).read_bytes(), lambda _, about: about.pop("dense"))
    (artifact / PART).write_bytes(part)
    resize_part(artifact, PART)
    found = load_artifact(artifact).graphs.tensors()[0]
    assert {name: t.shape for name, t in found.items()} == {
        name: t.shape for name, t in expected.items() if t.is_floating_point()
    }


def metadata_of(part: bytes) -> Json:
    (length,) = struct.unpack_from("<Q", part)
    header: Json = json.loads(part[8 : 8 + length])
    return header


def with_header(part: bytes, change: Callable[[Json, Json], object]) -> bytes:
    """Return a part whose header and metadata are changed."""
    (length,) = struct.unpack_from("<Q", part)
    header = metadata_of(part)
    about = json.loads(header["__metadata__"]["recsys"])
    change(header, about)
    if "recsys" in header.get("__metadata__", {}):
        header["__metadata__"]["recsys"] = json.dumps(about)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + part[8 + length :]


def _set(key: str, value: object) -> Callable[[Json, Json], object]:
    return lambda _, about: about.update({key: value})


def _set_plan(key: str, value: object) -> Callable[[Json, Json], object]:
    return lambda _, about: about["steps"][0].update({key: value})


CHECK = ("input", "of", "per_row", "times", "width")
WRONG = {
    "no metadata": (lambda header, _: header.pop("__metadata__"), "operators.__metadata__: missing"),
    "no plan": (lambda header, _: header.pop("plans.0"), r"steps\[0\].plan: got 'plans.0', expected a tensor of the"),
    "format": (_set("format", "x"), "operators.format: got 'x', expected recsys-plan"),
    "version": (_set("format_version", 5), "got format version 5, expected at most 4; install a newer release"),
    "no inputs": (_set_plan("inputs", []), "rows_of: got"),
    "inputs": (_set_plan("inputs", [0, 1, 3]), "inputs: got '3', expected"),
    "a negative input": (_set_plan("inputs", [0, -1, 2]), "inputs: got '-1', expected"),
    "rows_of": (_set_plan("rows_of", 3), "rows_of: got '3', expected a number below 3"),
    "per_row": (_set_plan("per_row", 0), "per_row: got '0'"),
    "widths": (_set_plan("widths", [2**40]), "widths"),
    "more widths": (_set_plan("widths", [0, 7]), "widths: got 2, expected 1"),
    "an output": (_set("outputs", [{"name": "score", "place": 4}]), "place: got '4', expected a number below 4"),
    "a constant": (_set_plan("constants", [{"kind": "rows"}] * 4), "operators: "),
    "a kind": (_set_plan("constants", [{"kind": "x"}]), r"constants\[0\].kind: got 'x', expected one of rows, tensor"),
    "a tensor": (_set_plan("constants", [{"kind": "tensor", "name": "x"}]), "got 'x', expected a tensor of the file"),
    "a step": (_set_plan("kind", "x"), "kind: got 'x', expected one of plan, gather"),
    "a gather": (_set("steps", [{"kind": "gather", "rows": 3, "index": 0}]), "rows: got '3', expected a number"),
    "a check": (_set("checks", [dict.fromkeys(CHECK, 1) | {"per_row": 0}]), "per_row: got '0', expected"),
    "a check elsewhere": (_set("checks", [dict.fromkeys(CHECK, 3)]), "input: got '3', expected a number below 3"),
    "dtype": (lambda header, _: header["plans.0"].update(dtype="F8"), "operators.tensors.plans.0.dtype: got 'F8'"),
    "numbers": (lambda header, _: header["plans.0"].update(dtype="U8"), "data_offsets: got"),
    "offsets": (lambda header, _: header["plans.0"].update(data_offsets=[0, 2**63]), "plans.0.data_offsets: got"),
    "shape": (lambda header, _: header["plans.0"].update(shape=[2**62, 2**62]), "plans.0.data_offsets: got"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parts_are_refused(artifact: Path, name: str) -> None:
    change, text = WRONG[name]
    (artifact / PART).write_bytes(with_header((artifact / PART).read_bytes(), change))
    resize_part(artifact, PART)
    with pytest.raises(ManifestError, match=rf"part '{PART}': not readable as a program: .*{text}"):
        load_artifact(artifact)


@needs_tool
@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_the_native_library_gives_the_same_bits(
    native: NativeModel, artifact: Path, tmp_path: Path, dtype: str
) -> None:
    set_linear_dtype(artifact, dtype)
    model = load_artifact(artifact)
    native.open(artifact)

    def check() -> None:
        for requests in batches(model.signature, 1):
            found = native.predict(model.signature, requests)
            assert [values.tobytes() for values in found.values()] == python_answer(model, requests)

    check()
    generator = torch.Generator().manual_seed(3)
    held = model.graphs.tensors()[0]
    weights = {n: torch.randn(t.shape, generator=generator) for n, t in held.items() if t.is_floating_point()}
    write_delta(tmp_path / "d", model, weights)
    native.call("prepare", path=str(tmp_path / "d"))
    native.call("apply")
    apply(prepare(model.rows, tmp_path / "d"))
    check()


@needs_tool
@pytest.mark.parametrize("name", WRONG)
def test_the_native_library_refuses_wrong_parts_alike(native: NativeModel, artifact: Path, name: str) -> None:
    (artifact / PART).write_bytes(with_header((artifact / PART).read_bytes(), WRONG[name][0]))
    resize_part(artifact, PART)
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))


@needs_tool
def test_the_native_library_refuses_other_types_of_a_program_alike(native: NativeModel, alone: Path) -> None:
    lie(alone, lambda data: data["targets"][0].update(program=None))
    assert_same_error(lambda: native.open(alone), lambda: load_artifact(alone))


def test_damage_is_noticed(artifact: Path) -> None:
    assert PART in {part["path"] for part in manifest_of(artifact)["skeletons"]}
    flip(artifact / PART, -1)
    with pytest.raises(ChecksumError, match=f"part '{PART}'"):
        load_artifact(artifact)


def refusals(part: bytes, changed_at: Sequence[int], rows: Sequence[Tensor], inputs: Sequence[Tensor]) -> int:
    """Change bits of the bytes at these places of a program, one at a time; return how many of them are refused."""
    num_refused = 0
    for at in changed_at:
        for mask in (0x01, 0x80):
            changed = bytearray(part)
            changed[at] ^= mask
            try:
                operators.stored_program(bytes(changed)).bind(rows, {}, "float32")(*inputs)
            except (RuntimeError, ValueError, TypeError):
                num_refused += 1
    return num_refused


def test_no_bytes_make_a_plan_that_reads_elsewhere(dlrm: Path) -> None:
    part = (dlrm / PART).read_bytes()
    rows = load_artifact(dlrm).rows.ranks[0].rows
    (length,) = struct.unpack_from("<Q", part)
    inputs = batch_of(load_artifact(dlrm).signature, 4).inputs()
    start = 8 + length + metadata_of(part)["plans.0"]["data_offsets"][0]
    end = 8 + length + metadata_of(part)["plans.0"]["data_offsets"][1]
    num_refused = refusals(part, [*range(0, 8 + length, 5), *range(start, end)], rows, inputs)
    for size in (*range(0, 64), length, 8 + length, len(part) - 1):
        with pytest.raises(RuntimeError):
            operators.stored_program(part[:size])
    assert num_refused > length // 10


def test_a_wrong_ranking_graph_stops_the_export_though_the_program_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(lengths: Tensor, picked: Tensor) -> Tensor:
        return jagged_places(lengths, picked.flip(0))

    monkeypatch.setattr("export.graph.ranking.jagged_places", wrong)
    # It would leave nothing that is expanded by places.
    monkeypatch.setattr("export.artifact.writing.sink_expansions", lambda _: None)
    with pytest.raises((VerificationError, RuntimeError)):
        export_model(CASES["sequences"].make(), tmp_path / "a", ExportConfig(context=("clicked",)))
    assert not (tmp_path / "a").exists()


def test_a_ranking_graph_that_expands_to_other_rows_stops_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _Sinking.__init__

    def wrong(self: _Sinking, module: fx.GraphModule, *others: Any) -> None:
        right(self, module, *others)
        with module.graph.inserting_after(self._row_context):
            self._row_context = module.graph.call_method("flip", (self._row_context, [0]))

    monkeypatch.setattr(_Sinking, "__init__", wrong)
    with pytest.raises(VerificationError, match="a ranking batch of"):
        export_model(CASES["sequences"].make(), tmp_path / "a", ExportConfig(context=("clicked",)))
    assert not (tmp_path / "a").exists()
