"""The native kernels: by themselves against torch, and by programs against torch's operators.

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
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError, TargetError
from recsys.inputs.signature import IdPolicy
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from tests.export.delta.test_delta import with_dense
from tests.native.program_models import assert_near
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import CASES, batch_of, dlrm

pytestmark = needs_kernels

ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid}


def ops() -> Any:
    return torch.ops.recsys_ops


def layer(num_outputs: int, num_inputs: int, dtype: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5
    bias = torch.randn(num_outputs, generator=generator)
    return weight, bias, ops().pack_linear(weight, bias, dtype)


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


@pytest.mark.parametrize(
    "data_type", [DataType.FP32, DataType.FP16, DataType.INT8, DataType.INT4, DataType.INT2]
)
@pytest.mark.usefixtures("isa")
def test_every_row_type_is_looked_up_as_by_fbgemm(tmp_path: Path, data_type: DataType) -> None:
    for name in ("dlrm", "bare weighted collection", "sequences"):
        export_model(CASES[name].make().eval(), tmp_path / name, ExportConfig(data_type=data_type))
        plain, own = load_artifact(tmp_path / name, scripted=True), load_artifact(tmp_path / name)
        assert own.runs_program
        batch = batch_of(plain.signature, 50, seed=3)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


@pytest.mark.parametrize("policy", [policy for policy in IdPolicy if policy is not IdPolicy.MAPPED])
@pytest.mark.usefixtures("isa")
def test_ids_out_of_range_are_treated_alike(tmp_path: Path, policy: IdPolicy) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(id_policy=policy))
    plain, own = load_artifact(tmp_path / "a", scripted=True), load_artifact(tmp_path / "a")
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
def test_lookups_refuse_lengths_that_do_not_fit(tmp_path: Path) -> None:
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
def test_torch_can_check_and_trace_interactions() -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
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
def test_programs_predict_what_graphs_do(tmp_path: Path, name: str, dtype: str) -> None:
    case = CASES[name]
    config = ExportConfig(table_data_types=case.table_data_types, linear_dtype=dtype)
    export_model(case.make().eval(), tmp_path / "a", config)
    plain, own = load_artifact(tmp_path / "a", scripted=True), load_artifact(tmp_path / "a")
    assert own.runs_program
    assert not plain.runs_program
    for num_rows in (0, 1, 2, 33):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, dtype)


def test_layers_in_bfloat16_stay(tmp_path: Path) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(dense_dtype="bfloat16"))
    assert not load_artifact(tmp_path / "a").runs_program


def test_the_report_counts_the_steps(tmp_path: Path) -> None:
    report = export_model(dlrm().eval(), tmp_path / "a", ExportConfig(context=("f0",)))
    num_layers = sum(isinstance(part, nn.Linear) for part in dlrm().modules())
    console = Console(record=True, width=100)
    print_report(report, console)
    steps = report.steps["cpu"]
    assert (steps.num_linear, steps.num_dot) == (num_layers, 1)
    assert (
        f"program on cpu: {steps.num_steps} steps, with {num_layers} linear layers" in console.export_text()
    )


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.usefixtures("isa")
def test_a_delta_of_dense_weights_packs_them_again(tmp_path: Path, dtype: str) -> None:
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


def test_rounded_products_need_the_native_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(linear_dtype="int8"))
    export_model(dlrm().eval(), tmp_path / "b", ExportConfig())
    monkeypatch.setattr(operators, "why_missing", lambda: "the native kernels are not built")
    with pytest.raises(
        TargetError, match="target 'cpu': needs linear layers in int8, but the native kernels"
    ):
        load_artifact(tmp_path / "a")
    with pytest.raises(ExportError, match="linear_dtype: got 'int8', but the native kernels are not built"):
        ExportConfig(linear_dtype="int8")
    assert not load_artifact(tmp_path / "b").runs_program
    assert not load_artifact(tmp_path / "a", scripted=True).runs_program


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


#: Sets a signal stack in which what the system saves of tiles has no room, so that it denies them.
_WITHOUT_TILES = """
import ctypes, logging, sys

class Stack(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, len(memory))), None) == 0
from recsys.artifact.load import load_artifact
from recsys.kernels import operators
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s", force=True)
load_artifact(sys.argv[1])
print(operators.instructions())
"""


def test_loaders_do_without_tiles_that_the_system_denies(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RECSYS_ISA"}
    if operators.why_no_tiles() or operators.instructions() != "amx":
        pytest.skip("this process has no tiles")
    export_model(dlrm(), tmp_path / "a", ExportConfig())
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TILES, str(tmp_path / "a")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = "target 'cpu': linear layers multiply by avx512, not by amx: the system does not let this process use tiles"
    assert said in done.stdout, done.stderr
    assert done.stdout.endswith("avx512\n")


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
