"""The operators of recsys_ops: by themselves against torch, and exchanged in graphs against the plain graphs.

Shape letters: B batch, K inputs and N outputs of a layer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from export.report import print_report
from recsys import EmbeddingBagCollection, KeyedJaggedTensor, torchscript
from recsys.artifact.delta import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError, TargetError
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.signature import IdPolicy
from tests.cases.rows_of_ids import read
from tests.export.delta.test_delta import with_dense
from tests.support.export_models import CASES, batch_of, dlrm
from tests.support.helpers import bag

pytestmark = pytest.mark.skipif(
    bool(operators.why_missing()), reason="needs the library of operators; make native"
)

#: Of the largest output: products of numbers that are rounded to 24, 8 and 7 bits.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-6, "int8": 2.0**-5}
ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid}


def ops() -> Any:
    return torch.ops.recsys_ops


def layer(num_outputs: int, num_inputs: int, dtype: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5
    bias = torch.randn(num_outputs, generator=generator)
    return weight, bias, ops().pack_linear(weight, bias, dtype)


def assert_near(found: Tensor, expected: Tensor, dtype: str) -> None:
    assert found.shape == expected.shape
    if expected.numel():
        assert float((found - expected).abs().max()) <= TOLERANCES[dtype] * max(
            1.0, float(expected.abs().max())
        )


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (48, 16), (49, 33), (513, 15)], ids=str)
@pytest.mark.usefixtures("isa")
def test_linear_layers_are_those_of_torch(dtype: str, shape: tuple[int, int]) -> None:
    weight, bias, packed = layer(*shape, dtype)
    for num_rows in (0, 1, 2, 5, 48, 49, 300):
        inputs = torch.randn(num_rows, shape[1])
        for name, activation in ACTIVATIONS.items():
            found = ops().linear(inputs, packed, shape[0], name)
            assert_near(found, activation(functional.linear(inputs, weight, bias)), dtype)


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.usefixtures("isa")
def test_a_row_has_the_same_bits_in_every_batch(dtype: str) -> None:
    _, _, packed = layer(130, 70, dtype)
    inputs = torch.randn(300, 70)
    every = ops().linear(inputs, packed, 130, "sigmoid")
    for row in (0, 1, 47, 48, 255, 299):
        assert torch.equal(ops().linear(inputs[row : row + 1], packed, 130, "sigmoid")[0], every[row])
        mixed = torch.cat([torch.full((3, 70), 1e4), inputs[row : row + 1]])
        assert torch.equal(ops().linear(mixed, packed, 130, "sigmoid")[3], every[row])


@pytest.mark.usefixtures("isa")
def test_any_shape_and_view_is_taken() -> None:
    weight, bias, packed = layer(9, 6, "float32")
    wide = torch.randn(7, 20)
    views = [
        torch.randn(6),
        torch.randn(2, 3, 6),
        wide[:, 3:9],
        torch.randn(6, 4).t(),
        wide[::2, :6],
        torch.randn(1, 6).expand(5, 6),
    ]
    for view in views:
        assert_near(ops().linear(view, packed, 9, "none"), functional.linear(view, weight, bias), "float32")
    shifted = torch.cat([torch.zeros(4, dtype=torch.uint8), packed])[4:]
    assert torch.equal(
        ops().linear(wide[:, :6], shifted, 9, "none"), ops().linear(wide[:, :6], packed, 9, "none")
    )


@pytest.mark.usefixtures("isa")
def test_interactions_of_other_types_are_computed_too() -> None:
    dense, sparse = torch.randn(4, 8), torch.randn(4, 3, 8)
    expected = ops().dot_interaction(dense, sparse)
    for first, second in ((torch.float64, torch.float64), (torch.float32, torch.bfloat16)):
        found = ops().dot_interaction(dense.to(first), sparse.to(second))
        assert found.dtype == first
        torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 1, 1), (5, 26, 64), (49, 7, 33)], ids=str)
@pytest.mark.usefixtures("isa")
def test_interactions_are_those_of_torch(shape: tuple[int, int, int]) -> None:
    dense, sparse = torch.randn(shape[0], shape[2]), torch.randn(shape)
    vectors = torch.cat((dense.unsqueeze(1), sparse), 1)
    rows, columns = torch.triu_indices(shape[1] + 1, shape[1] + 1, offset=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
    found = ops().dot_interaction(dense, sparse)
    torch.testing.assert_close(found, torch.cat((dense, products), 1), rtol=1e-5, atol=1e-4)
    for row in range(min(shape[0], 5)):
        assert torch.equal(ops().dot_interaction(dense[row : row + 1], sparse[row : row + 1])[0], found[row])


#: Two slots of 4 rows of 2 float32 numbers: offset, rows, type, dim, column, modulus, last ID, feature.
SLOTS = torch.tensor([[0, 4, 0, 2, 0, 0, -1, 0], [32, 4, 0, 2, 2, 0, -1, 1]])
ROWS = torch.arange(16.0).view(torch.uint8)


def looked_up(lengths: list[int], values: list[int], **changes: Any) -> Tensor:
    given = {"rows": ROWS, "slots": SLOTS, "weights": None, "pooling": 0, "width": 4, "num_features": 2}
    bags, ids = torch.tensor(lengths, dtype=torch.int64), torch.tensor(values, dtype=torch.int64)
    found: Tensor = ops().lookup(**{**given, **changes}, lengths=bags, values=ids)
    return found


@pytest.mark.usefixtures("isa")
def test_lookups_pool_rows() -> None:
    found = looked_up([1, 0, 2, 1], [3, 0, 1, 2])
    assert found.tolist() == [[6, 7, 18, 20], [0, 0, 12, 13]]
    weighted = looked_up([1, 0, 2, 1], [3, 0, 1, 2], weights=torch.tensor([2.0, 1, -1, 0.5]), pooling=1)
    assert weighted.tolist() == [[12, 14, -1, -1], [0, 0, 6, 6.5]]
    assert looked_up([], []).shape == (0, 4)


@pytest.mark.usefixtures("isa")
def test_slots_read_the_bags_of_their_features() -> None:
    slots = SLOTS.clone()
    slots[:, 7] = torch.tensor([3, 1])
    lengths, values = [1, 1, 2, 0, 1, 1, 1, 1], [9, 9, 3, 2, 9, 9, 1, 2]
    found = looked_up(lengths, values, slots=slots, num_features=4)
    assert found.tolist() == [[2, 3, 26, 28], [4, 5, 0, 0]]
    weights = torch.tensor([0, 0, 1, 2, 0, 0, 3, 4.0])
    found = looked_up(lengths, values, slots=slots, num_features=4, weights=weights)
    assert found.tolist() == [[6, 9, 38, 41], [16, 20, 0, 0]]
    with pytest.raises(RuntimeError, match="got ID 7 for feature 3, expected 0 <= ID < 4"):
        looked_up(lengths, [*values[:-1], 7], slots=slots, num_features=4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: looked_up([1, 1], [0, 4]), "values: got ID 4 for feature 1, expected 0 <= ID < 4"),
        (lambda: looked_up([1, 1], [-1, 0]), "values: got ID -1 for feature 0, expected 0 <= ID < 4"),
        (lambda: looked_up([1, 2], [0, 0]), "lengths: got 2 at position 1 for 2 values"),
        (lambda: looked_up([1, 0], [0, 0]), "lengths: got a sum of 1 for 2 values"),
        (lambda: looked_up([-1, 3], [0, 0]), "lengths: got -1 at position 0"),
        (lambda: looked_up([2**62, 2**62], [0]), "lengths: got 4611686018427387904 at position 0"),
        (lambda: looked_up([1], [0]), "lengths: got 1, expected a multiple of 2"),
        (
            lambda: looked_up([1, 0], [0], weights=torch.ones(2)),
            r"weights: got Float \[2\], expected floating-point numbers \[1\]",
        ),
        (lambda: looked_up([1, 0], [0], rows=ROWS[:-1]), "slots: got 4 rows of 8 bytes, expected at most 3"),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS + 5),
            "slots: got a type, dim, column, offset, modulus or feature out of its range",
        ),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS - torch.tensor([0, 0, 0, 0, 0, 1 << 62, 0, 0])),
            "slots: got a type, dim, column, offset, modulus or feature out of its range",
        ),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS[:, :7]),
            r"slots: got Long \[2, 7\], expected int64 \[S, 8\]",
        ),
        (lambda: looked_up([1, 0], [0], pooling=3), "pooling: got 3, expected 0 to 2"),
        (lambda: looked_up([1], [0], num_features=1), "slots: got a type, dim, column"),
        (lambda: looked_up([], [], num_features=0), "num_features: got 0, expected at least 1"),
        (
            lambda: looked_up([1, 0, 0], [0], pooling=2, num_features=3),
            "slots: expected feature 0 in slot 0 without pooling",
        ),
    ],
)
@pytest.mark.usefixtures("isa")
def test_wrong_lookups_are_refused_before_a_row_is_read(call: Any, text: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
        call()


@pytest.mark.usefixtures("isa")
def test_a_slot_without_a_number_of_rows_stays_inside_the_rows() -> None:
    slots = SLOTS.clone()
    slots[:, 1] = -1
    assert looked_up([1, 1], [7, 3], slots=slots).tolist() == [[14, 15, 14, 15]]
    with pytest.raises(RuntimeError, match="got ID 8 for feature 0, expected 0 <= ID < 8"):
        looked_up([1, 1], [8, 3], slots=slots)


@pytest.mark.usefixtures("isa")
def test_slots_treat_ids_by_their_policy() -> None:
    slots = SLOTS.clone()
    slots[0, 5], slots[1, 6] = 3, 2
    found = [looked_up([1, 1], [bad, bad], slots=slots)[0].tolist() for bad in (3, -1, 2**63 - 1, -(2**63))]
    modulo = [[0, 1], [4, 5], [2, 3], [2, 3]]
    assert found == [[*row, 12, 13] for row in modulo]


@pytest.mark.usefixtures("isa")
def test_slots_mix_ids_whose_modulus_is_negative() -> None:
    cases: dict[int, list[tuple[int, int]]] = {}
    for one, num_rows, row in read():
        cases.setdefault(num_rows, []).append((one, row))
    assert {1, 60, 1024} <= set(cases)
    for num_rows, of_table in cases.items():
        if num_rows > 1 << 20:
            continue
        slots = torch.tensor([[0, num_rows, 0, 1, 0, -num_rows, -1, 0]])
        rows = torch.arange(float(num_rows)).view(torch.uint8)
        ids = [one for one, _ in of_table]
        found = looked_up([1] * len(ids), ids, slots=slots, rows=rows, width=1, num_features=1)
        assert found[:, 0].tolist() == [row for _, row in of_table]


@pytest.mark.parametrize(
    "data_type", [DataType.FP32, DataType.FP16, DataType.INT8, DataType.INT4, DataType.INT2]
)
@pytest.mark.usefixtures("isa")
def test_every_row_type_is_looked_up_as_by_fbgemm(tmp_path: Path, data_type: DataType) -> None:
    for name in ("dlrm", "bare weighted collection", "sequences"):
        export_model(CASES[name].make().eval(), tmp_path / name, ExportConfig(data_type=data_type))
        plain, own = load_artifact(tmp_path / name, own_operators=False), load_artifact(tmp_path / name)
        assert "fbgemm::int_nbit_split_embedding_codegen_lookup_function" not in torchscript.operators(
            own.module
        )
        batch = batch_of(plain.signature, 50, seed=3)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


@pytest.mark.parametrize("policy", [policy for policy in IdPolicy if policy is not IdPolicy.MAPPED])
@pytest.mark.usefixtures("isa")
def test_ids_out_of_range_are_treated_alike(tmp_path: Path, policy: IdPolicy) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(id_policy=policy))
    plain, own = load_artifact(tmp_path / "a", own_operators=False), load_artifact(tmp_path / "a")
    batch = batch_of(plain.signature, 20)
    for wrong in (-1, 10**6, 2**63 - 1, -(2**63)):
        inputs = [tensor.clone() for tensor in batch.inputs()]
        inputs[-1][7] = wrong
        if policy is IdPolicy.REJECT:
            for artifact in (plain, own):
                with pytest.raises(RuntimeError):
                    artifact.forward(*inputs)
        else:
            for output, expected in plain.forward(*inputs).items():
                assert_near(own.forward(*inputs)[output], expected, "float32")


@pytest.mark.usefixtures("isa")
def test_lookups_in_graphs_refuse_lengths_that_do_not_fit(tmp_path: Path) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig())
    own = load_artifact(tmp_path / "a")
    dense, lengths, values = batch_of(own.signature, 6).inputs()
    shorter, negative = lengths.clone(), lengths.clone()
    shorter[0] += 1
    negative[0], negative[1] = -1, negative[1] + negative[0] + 1
    for wrong in (shorter, negative, lengths[:-1]):
        with pytest.raises(RuntimeError):
            own.forward(dense, wrong, values)


@pytest.mark.usefixtures("isa")
def test_torch_can_check_and_trace_the_operators() -> None:
    _, _, packed = layer(9, 6, "int8")
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(ops().linear.default, (torch.randn(4, 6), packed, 9, "relu"), test_utils=checks)
    arguments = (ROWS, SLOTS, torch.tensor([1, 0, 2, 1]), torch.tensor([3, 0, 1, 2]), None, 0, 4, 2)
    torch.library.opcheck(ops().lookup.default, arguments, test_utils=checks)
    dot = ops().dot_interaction.default
    torch.library.opcheck(dot, (torch.randn(4, 8), torch.randn(4, 3, 8)), test_utils=checks)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda packed: ops().linear(torch.ones(2, 5), packed, 9, "none"),
            r"input: got \[2, 5\], expected \[..., 6\]",
        ),
        (lambda packed: ops().linear(torch.ones(2, 6), packed, 8, "none"), "out_features: got 8, expected 9"),
        (
            lambda packed: ops().linear(torch.ones(2, 6), packed, 9, "tanh"),
            "activation: got 'tanh', expected none",
        ),
        (lambda packed: ops().linear(torch.ones(2, 6).double(), packed, 9, "none"), "input: got Double"),
        (lambda packed: ops().linear(torch.tensor(1.0), packed, 9, "none"), "input: got no dimension"),
        (
            lambda packed: ops().linear(torch.ones(2, 6), packed[:-1], 9, "none"),
            "bytes of packed weights, expected",
        ),
        (
            lambda packed: ops().linear(torch.ones(2, 6), packed * 0, 9, "none"),
            "bytes that are no packed weights",
        ),
        (lambda packed: ops().linear(torch.ones(2, 6), packed.int(), 9, "none"), "packed: got Int"),
        (lambda _: ops().pack_linear(torch.ones(3), None, "int8"), r"weight: got \[3\], expected \[N, K\]"),
        (lambda _: ops().pack_linear(torch.ones(3, 0), None, "int8"), "expected 1 to"),
        (lambda _: ops().pack_linear(torch.ones(3, 2), torch.ones(2), "int8"), r"bias: expected \[3\]"),
        (lambda _: ops().pack_linear(torch.full((3, 2), torch.nan), None, "int8"), "weight: got NaN"),
        (lambda _: ops().pack_linear(torch.ones(3, 2), None, "int4"), "dtype: got 'int4', expected float32"),
        (
            lambda _: ops().dot_interaction(torch.ones(2, 3), torch.ones(2, 4, 5)),
            r"sparse: got \[2, 4, 5\] beside",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: Any, text: str) -> None:
    _, _, packed = layer(9, 6, "bfloat16")
    with pytest.raises((ValueError, TypeError), match=text):
        call(packed)


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("isa")
def test_exchanged_graphs_predict_what_the_plain_ones_do(tmp_path: Path, name: str, dtype: str) -> None:
    case = CASES[name]
    config = ExportConfig(table_data_types=case.table_data_types, linear_dtype=dtype)
    export_model(case.make().eval(), tmp_path / "a", config)
    plain, own = load_artifact(tmp_path / "a", own_operators=False), load_artifact(tmp_path / "a")
    assert plain.graphs.own_operators == ()
    assert len(own.graphs.own_operators) == 1
    assert "recsys_ops::linear" not in torchscript.operators(plain.module)
    for num_rows in (0, 1, 2, 33):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, dtype)


def test_layers_in_bfloat16_stay(tmp_path: Path) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(dense_dtype="bfloat16"))
    assert load_artifact(tmp_path / "a").graphs.own_operators == ()


def test_a_dlrm_has_no_plain_layer_left(tmp_path: Path) -> None:
    report = export_model(dlrm().eval(), tmp_path / "a", ExportConfig(context=("f0",)))
    own = load_artifact(tmp_path / "a")
    num_layers = sum(isinstance(part, nn.Linear) for part in dlrm().modules())
    for form, exchanged in zip((own.module, own.ranking), own.graphs.own_operators, strict=True):
        assert form is not None
        assert (exchanged.num_linear, exchanged.num_dot, exchanged.left) == (num_layers, 1, ())
        assert not {"aten::linear", "aten::relu_", "aten::bmm"} & set(torchscript.operators(form))
    console = Console(record=True, width=100)
    print_report(report, console)
    assert f"own operators on cpu: {num_layers} linear layers, 1 interaction" in console.export_text()


class Odd(nn.Module):
    """Layers that stay as they are, and one whose output is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(8, 8)
        self.made = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.broken = nn.Linear(8, 8)
        with torch.no_grad():
            self.broken.weight[0, 0] = torch.inf

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features).values()
        linear = self.layer(pooled)
        factor = pooled.sum() * 0.0 + self.scale
        made = functional.linear(pooled, self.made.weight * factor)
        return {"sum": torch.relu(linear) + linear, "made": made, "broken": self.broken(pooled)[:, 1:]}


def test_what_cannot_be_exchanged_stays_and_is_named(tmp_path: Path) -> None:
    export_model(Odd().eval(), tmp_path / "a", ExportConfig())
    (found,) = load_artifact(tmp_path / "a").scripted().own_operators
    assert found.left == (
        "aten::linear: its weights are computed",
        "aten::linear: its weights are not finite",
    )
    assert found.num_linear == 1


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(1, 70_000), (3, 0), (0, 3)], ids=str)
def test_layers_of_other_shapes_stay(shape: tuple[int, int]) -> None:
    frozen = torchscript.freeze(torchscript.script(nn.Sequential(nn.Linear(shape[1], shape[0])).eval()))
    exchanged = operators.exchange(frozen, "float32")
    assert exchanged.left == (f"aten::linear: its weights are {shape[0]} by {shape[1]}",)
    assert exchanged.num_linear == 0


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.usefixtures("isa")
def test_a_delta_of_dense_weights_packs_them_anew(tmp_path: Path, dtype: str) -> None:
    old = dlrm().eval()
    new = with_dense(old)
    for name, model in (("old", old), ("new", new)):
        export_model(model, tmp_path / name, ExportConfig(linear_dtype=dtype))
    export_delta(old, new, tmp_path / "d", DeltaConfig(artifact=tmp_path / "old"))
    changed, fresh = load_artifact(tmp_path / "old"), load_artifact(tmp_path / "new")
    batch = batch_of(fresh.signature, 30)
    before = changed.forward(*batch.inputs())
    apply(prepare(changed.rows, tmp_path / "d"))
    for output, expected in fresh.forward(*batch.inputs()).items():
        assert torch.equal(changed.forward(*batch.inputs())[output], expected)
        assert not torch.equal(before[output], expected)


def test_rounded_products_need_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(linear_dtype="int8"))
    export_model(dlrm().eval(), tmp_path / "b", ExportConfig())
    monkeypatch.setattr(operators, "why_missing", lambda: "the library of operators is not built")
    with pytest.raises(TargetError, match="target 'cpu': needs linear layers in int8, but the library"):
        load_artifact(tmp_path / "a")
    with pytest.raises(
        ExportError, match="linear_dtype: got 'int8', but the library of operators is not built"
    ):
        ExportConfig(linear_dtype="int8")
    assert load_artifact(tmp_path / "b").graphs.own_operators == ()
    assert load_artifact(tmp_path / "a", own_operators=False).graphs.own_operators == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linear_dtype": "int4"}, "linear_dtype: got 'int4', expected float32 or bfloat16 or int8"),
        (
            {"linear_dtype": "int8", "targets": (("cpu",), ("cuda:0",))},
            r"for targets \['cuda:0'\], expected 'float32'",
        ),
        (
            {"linear_dtype": "int8", "dense_dtype": "bfloat16"},
            "with dense_dtype 'bfloat16', expected 'float32'",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        ExportConfig(**options)


def test_the_environment_names_the_instructions(isa: str) -> None:
    code = "from recsys.kernels import operators; print(operators.instructions())"

    def run(name: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "RECSYS_ISA": name}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert run(isa).stdout == f"{isa}\n"
    assert "RECSYS_ISA: got 'sse', expected plain, avx2, avx512 or amx" in run("sse").stderr


def test_commands_say_in_one_line_that_instructions_are_unknown(tmp_path: Path) -> None:
    export_model(dlrm(), tmp_path / "a", ExportConfig())
    done = subprocess.run(
        [sys.executable, "-m", "serve.profiler", str(tmp_path / "a"), "--batch-sizes", "1", "--no-html"],
        env={**os.environ, "RECSYS_ISA": "sse"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines() == [
        "recsys-profile: RECSYS_ISA: got 'sse', expected plain, avx2, avx512 or amx"
    ]
