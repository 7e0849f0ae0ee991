"""Programs: a part of the artifact that kernels of our own run, as they run TorchScript's graphs."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from export.verify.compare import LINEAR_TOLERANCES
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.compiled import CompiledGraphs
from recsys.artifact.delta import apply, prepare
from recsys.artifact.delta_file import DeltaWriter
from recsys.artifact.delta_header import DeltaHeader
from recsys.artifact.load import LoadedArtifact, load_artifact, load_compiled_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.artifact.samples import Batch
from recsys.errors import ChecksumError, ExportError, ManifestError, TargetError
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.sharding.plan.plan import ShardingPlan
from recsys.signature import IdPolicy
from tests.export.lower.test_lowering import FORMED, LOWERED
from tests.models.archetypes import ARCHETYPES
from tests.native.test_model import batches, python_answer
from tests.native.test_plans import MODELS, Mixed, is_direct, loaded, ranking_inputs
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.damage import Json, flip, lie, manifest_of, resize_part, same
from tests.support.compiled_model import needs_compiler, without_torchscript
from tests.support.export_models import batch_of
from tests.support.helpers import bag

pytestmark = [
    pytest.mark.skipif(bool(operators.why_missing()), reason="needs the library of operators; make native"),
    needs_compiler,
]
PART = "program.safetensors"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DLRM in both formats. Not to be written to."""
    path = tmp_path_factory.mktemp("planned") / "both"
    loaded(path, MODELS["dlrm"](), graph_format="both")
    return path


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    model = NativeModel()
    yield model
    assert model.close() == 0


@pytest.fixture
def pt2(both: Path, tmp_path: Path) -> Path:
    return without_torchscript(both, tmp_path / "pt2")


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
def test_a_stored_plan_gives_the_bits_of_the_torchscript_graph(
    both: Path, tmp_path: Path, dtype: str
) -> None:
    path = Path(shutil.copytree(both, tmp_path / "a"))
    set_linear_dtype(path, dtype)
    own, stored = load_artifact(path), load_compiled_artifact(path)
    assert isinstance(own.graphs, ProgramGraphs)
    assert isinstance(stored.graphs, CompiledGraphs)
    (exchanged,) = own.scripted().calls
    for call in (exchanged, own.graphs.calls[0], stored.graphs.calls[0]):
        assert type(call).__name__ == "Program"
    for num_rows in (0, 1, 2, 49, 300):
        inputs = batch_of(stored.signature, num_rows, seed=num_rows).inputs()
        assert same(stored.forward(*inputs), own.forward(*inputs))
        assert same(stored.forward(*inputs), exchanged(*inputs))


def test_neither_the_package_nor_its_torch_is_needed(pt2: Path) -> None:
    expected = load_artifact(pt2)
    lie(pt2, lambda data: data["targets"][0]["compiled"].update(torch="1.0", isa="armv9"))
    (pt2 / "target-0.pt2").unlink()
    inputs = batch_of(expected.signature, 5).inputs()
    assert same(load_artifact(pt2).forward(*inputs), expected.forward(*inputs))
    with pytest.raises(TargetError, match="compiled for the instructions 'armv9'"):
        load_artifact(pt2, own_operators=False)


def test_without_own_operators_the_package_runs(pt2: Path) -> None:
    plain, own = load_artifact(pt2, own_operators=False), load_artifact(pt2)
    assert not is_direct(plain)
    inputs = batch_of(plain.signature, 20).inputs()
    (found,), (expected,) = own.forward(*inputs).values(), plain.forward(*inputs).values()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["low_rank_dcn", "full_rank_dcn", "deepfm", "mmoe", "two_towers"])
def test_models_of_the_zoo_have_programs_of_the_same_bits(tmp_path: Path, name: str) -> None:
    _, own = loaded(tmp_path / "a", MODELS[name](), context=("dense_features", "f0", "f2"))
    assert isinstance(own.graphs, ProgramGraphs)
    exchanged = own.scripted().calls
    for num_rows in (1, 50):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert same(exchanged[0](*inputs), own.forward(*inputs))
        inputs = ranking_inputs(own, (num_rows, 2))
        assert same(exchanged[1](*inputs), own.forward_ranking(*inputs))


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


@pytest.mark.parametrize("name", LOWERED)
def test_archetypes_have_programs_of_the_same_bits(tmp_path: Path, name: str) -> None:
    for own in on_one_and_two_devices(tmp_path / "a", name):
        (exchanged,) = own.scripted().calls
        for num_rows in (1, 2, 49, 300):
            inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
            assert same(own.forward(*inputs), exchanged(*inputs))


@pytest.mark.parametrize("name", FORMED)
def test_archetypes_with_forms_have_programs_like_their_graphs(tmp_path: Path, name: str) -> None:
    for own in on_one_and_two_devices(tmp_path / "a", name):
        plain = load_artifact(tmp_path / "a", target=own.target_name, own_operators=False)
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
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", own_operators=False)
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
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "b", own_operators=False)
    assert isinstance(own.graphs, ProgramGraphs)
    inputs = batch_of(own.signature, 60).inputs()
    tolerance = LINEAR_TOLERANCES[dtype]
    torch.testing.assert_close(own.forward(*inputs), plain.forward(*inputs), rtol=tolerance, atol=tolerance)


def test_deltas_change_whole_numbers_and_what_is_computed_of_weights(tmp_path: Path) -> None:
    case = ARCHETYPES["hstu"]
    torch.manual_seed(0)
    model = case.make().eval()
    export_model(model, tmp_path / "a", ExportConfig(**case.options))
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", own_operators=False)
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
def test_lookups_of_all_kinds_have_programs_of_the_same_bits(
    tmp_path: Path, policy: IdPolicy, data_type: DataType
) -> None:
    # Of dims that stored rows pad, with sums and means in turns, weights, and a feature in two tables.
    tables = [bag("t", 20, 10, ["f", "g"]), bag("u", 30, 7, ["h"], "MEAN"), bag("v", 9, 10, ["f"])]
    model = Pooled(EmbeddingBagCollection(tables, is_weighted=True))
    export_model(model.eval(), tmp_path / "a", ExportConfig(id_policy=policy, data_type=data_type))
    own = load_artifact(tmp_path / "a")
    assert isinstance(own.graphs, ProgramGraphs)
    (exchanged,) = own.scripted().calls
    for num_rows in (1, 50):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert same(own.forward(*inputs), exchanged(*inputs))


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
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", own_operators=False)
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
def test_deltas_pack_the_dense_weights_anew(both: Path, pt2: Path, tmp_path: Path, dtype: str) -> None:
    path = Path(shutil.copytree(both, tmp_path / "a"))
    for each in (path, pt2):
        set_linear_dtype(each, dtype)
    scripted, stored = load_artifact(path), load_artifact(pt2)
    inputs = batch_of(stored.signature, 60, seed=1).inputs()
    before = stored.forward(*inputs)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in stored.graphs.tensors()[0].items()
    }
    for artifact, name in ((scripted, "scripted"), (stored, "stored")):
        write_delta(tmp_path / name, artifact, weights)
    apply(prepare(scripted.rows, tmp_path / "scripted"))
    undo = apply(prepare(stored.rows, tmp_path / "stored"))
    after = stored.forward(*inputs)
    assert same(after, scripted.forward(*inputs))
    assert not same(after, before)
    apply(undo)
    assert same(stored.forward(*inputs), before)


def test_positions_are_a_part_of_the_plan(both: Path, pt2: Path, tmp_path: Path) -> None:
    stored = load_artifact(pt2)
    positions = {
        name: tensor
        for name, tensor in load_artifact(both, own_operators=False).graphs.tensors()[0].items()
        if not tensor.is_floating_point()
    }
    assert positions
    write_delta(tmp_path / "delta", stored, {name: tensor.flip(0) for name, tensor in positions.items()})
    with pytest.raises(ManifestError, match="expected the path of a dense weight of the artifact"):
        prepare(stored.rows, tmp_path / "delta")


def test_what_is_no_plan_is_compiled_alone(tmp_path: Path) -> None:
    config = ExportConfig(graph_format="pt2", linear_dtype="int8", batch="request")
    with pytest.raises(
        ExportError, match=r"'pt2' with linear_dtype 'int8', expected 'torchscript'.*no program"
    ):
        export_model(Mixed().eval(), tmp_path / "a", config)


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
    "version": (_set("format_version", 3), "got format version 3, expected at most 2; install a newer release"),
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
def test_wrong_parts_are_refused(pt2: Path, name: str) -> None:
    change, text = WRONG[name]
    (pt2 / PART).write_bytes(with_header((pt2 / PART).read_bytes(), change))
    resize_part(pt2, PART)
    with pytest.raises(ManifestError, match=rf"part '{PART}': not readable as own operators: .*{text}"):
        load_artifact(pt2)


@needs_tool
@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_the_native_library_gives_the_same_bits(
    native: NativeModel, pt2: Path, tmp_path: Path, dtype: str
) -> None:
    set_linear_dtype(pt2, dtype)
    lie(pt2, lambda data: data["targets"][0]["compiled"].update(torch="1.0", isa="armv9"))
    model = load_artifact(pt2)
    native.open(pt2)

    def check() -> None:
        for requests in batches(model.signature, 1):
            found = native.predict(model.signature, requests)
            assert [values.tobytes() for values in found.values()] == python_answer(model, requests)

    check()
    generator = torch.Generator().manual_seed(3)
    held = model.graphs.tensors()[0]
    write_delta(
        tmp_path / "d", model, {n: torch.randn(t.shape, generator=generator) for n, t in held.items()}
    )
    native.call("prepare", path=str(tmp_path / "d"))
    native.call("apply")
    apply(prepare(model.rows, tmp_path / "d"))
    check()


@needs_tool
@pytest.mark.parametrize("name", WRONG)
def test_the_native_library_refuses_wrong_parts_alike(native: NativeModel, pt2: Path, name: str) -> None:
    (pt2 / PART).write_bytes(with_header((pt2 / PART).read_bytes(), WRONG[name][0]))
    resize_part(pt2, PART)
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))


@needs_tool
def test_the_native_library_refuses_what_needs_operators_alike(native: NativeModel, pt2: Path) -> None:
    set_linear_dtype(pt2, "int8")
    lie(pt2, lambda data: data["targets"][0].pop("program"))
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))
    lie(pt2, lambda data: data["targets"][0].update(program=None))
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))


def test_damage_is_noticed(pt2: Path) -> None:
    assert PART in {part["path"] for part in manifest_of(pt2)["skeletons"]}
    flip(pt2 / PART, -1)
    with pytest.raises(ChecksumError, match=f"part '{PART}'"):
        load_artifact(pt2)


def test_no_bytes_make_a_plan_that_reads_elsewhere(both: Path) -> None:
    part = (both / PART).read_bytes()
    rows = load_artifact(both).rows.ranks[0].rows
    (length,) = struct.unpack_from("<Q", part)
    inputs = batch_of(load_artifact(both).signature, 4).inputs()
    start = 8 + length + metadata_of(part)["plans.0"]["data_offsets"][0]
    end = 8 + length + metadata_of(part)["plans.0"]["data_offsets"][1]
    num_refused = 0
    for at in [*range(0, 8 + length, 5), *range(start, end)]:
        for mask in (0x01, 0x80):
            changed = bytearray(part)
            changed[at] ^= mask
            try:
                operators.stored_program(bytes(changed)).bind(rows, {}, "float32")(*inputs)
            except (RuntimeError, ValueError, TypeError):
                num_refused += 1
    for size in (*range(0, 64), length, 8 + length, len(part) - 1):
        with pytest.raises(RuntimeError):
            operators.stored_program(part[:size])
    assert num_refused > length // 10
