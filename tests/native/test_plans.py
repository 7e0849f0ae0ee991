"""Plans: the steps over a batch's rows as one operator, against the plain graphs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor, torchscript
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.ranking import ranking_batch
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.models import click, zoo
from recsys.models.deepfm import SimpleDeepFMNN
from recsys.signature import IdPolicy
from tests.native.test_operators import assert_near
from tests.support.export_models import batch_of
from tests.support.helpers import bag

pytestmark = pytest.mark.skipif(
    bool(operators.why_missing()), reason="needs the library of operators; make native"
)

NUM_DENSE = 5
FEATURES = [f"f{i}" for i in range(5)]
TABLES = [
    {"name": f"t{i}", "num_embeddings": 40 + 9 * i, "embedding_dim": 24, "feature_names": [name]}
    for i, name in enumerate(FEATURES)
]
SIZES = (0, 1, 2, 5, 48, 49, 300)


def dlrm() -> nn.Module:
    return click.build_dlrm(
        tables=TABLES,
        dense_in_features=NUM_DENSE,
        dense_arch_layer_sizes=[33, 24],
        over_arch_layer_sizes=[17, 1],
    )


def low_rank_dcn() -> nn.Module:
    return zoo.build_dcn(
        tables=TABLES, dense_in_features=NUM_DENSE, num_cross_layers=2, cross_rank=7, deep_layer_sizes=[9, 4]
    )


def full_rank_dcn() -> nn.Module:
    return zoo.build_dcn(
        tables=TABLES, dense_in_features=NUM_DENSE, num_cross_layers=3, cross_rank=0, deep_layer_sizes=[9]
    )


def deepfm() -> nn.Module:
    return zoo.build_deepfm(tables=TABLES, dense_in_features=NUM_DENSE, deep_layer_sizes=[9, 4])


def mmoe() -> nn.Module:
    return zoo.build_mmoe(
        tables=TABLES,
        dense_in_features=NUM_DENSE,
        num_experts=3,
        expert_layer_sizes=[8, 4],
        tower_layer_sizes=[4],
    )


def two_towers() -> nn.Module:
    return zoo.build_two_tower(
        tables=TABLES, dense_in_features=NUM_DENSE, item_features=["f1", "f3"], tower_layer_sizes=[8, 4]
    )


MODELS = {make.__name__: make for make in (dlrm, low_rank_dcn, full_rank_dcn, deepfm, mmoe, two_towers)}


def loaded(folder: Path, model: nn.Module, **options: Any) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Export a model, and return it without and with own operators."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    widths = {"dense_features": NUM_DENSE} if isinstance(model, click.ClickModel) else {}
    export_model(model.eval(), folder, ExportConfig(dense_widths=widths, **options))
    return load_artifact(folder, own_operators=False), load_artifact(folder)


def row_alone(lengths: Tensor, values: Tensor, num_rows: int, row: int) -> tuple[Tensor, Tensor]:
    """Return the lengths and values of one row of a batch."""
    bags = values.split(lengths.tolist())
    return lengths.view(-1, num_rows)[:, row].contiguous(), torch.cat(bags[row::num_rows])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_a_plan_predicts_what_the_graph_does(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", MODELS[name]())
    assert torchscript.operators(own.module)["recsys_ops::plan"] >= 1
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo_are_one_operator(tmp_path: Path, name: str) -> None:
    _, own = loaded(tmp_path / "a", MODELS[name]())
    names = {kind for kind in torchscript.operators(own.module) if not kind.startswith("prim::")}
    assert names == {"recsys_ops::plan"}
    assert torchscript.operators(own.module)["recsys_ops::plan"] == 1


def test_a_model_that_puts_features_into_lists_is_one_operator(tmp_path: Path) -> None:
    tables = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f", "g"]), bag("u", 30, 8, ["h"])])
    model = SimpleDeepFMNN(NUM_DENSE, tables, hidden_layer_size=9, deep_fm_dimension=4)
    plain, own = loaded(tmp_path / "a", model)
    assert is_direct(own)
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        (found,) = own.forward(*batch.inputs()).values()
        (expected,) = plain.forward(*batch.inputs()).values()
        assert_near(found, expected, "float32")


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_a_row_has_the_same_bits_in_every_batch(tmp_path: Path, name: str, dtype: str) -> None:
    _, own = loaded(tmp_path / "a", MODELS[name](), linear_dtype=dtype)
    dense, lengths, values = batch_of(own.signature, 100, seed=4).inputs()
    (every,) = own.forward(dense, lengths, values).values()
    for row in (0, 1, 47, 48, 99):
        (found,) = own.forward(dense[row : row + 1], *row_alone(lengths, values, 100, row)).values()
        assert torch.equal(found[0], every[row])


@pytest.mark.parametrize("name", ["dlrm", "low_rank_dcn"])
@pytest.mark.parametrize("context", [("f0",), ("dense_features", "f0", "f2")], ids=str)
def test_ranking_forms_are_planned_too(tmp_path: Path, name: str, context: tuple[str, ...]) -> None:
    # The exporter compares the two forms with each other and with the float model.
    plain, own = loaded(tmp_path / "a", MODELS[name](), context=context)
    assert own.ranking is not None
    found = torchscript.operators(own.ranking)
    assert found["recsys_ops::plan"] >= 1
    assert "recsys_ops::linear" not in found
    assert is_direct(own, 1)
    for rows in ((), (0,), (1,), (3, 0, 2), (100, 7)):
        inputs = ranking_inputs(own, rows)
        found_scores, expected = own.forward_ranking(*inputs), plain.forward_ranking(*inputs)
        for output in expected:
            assert_near(found_scores[output], expected[output], "float32")


def ranking_inputs(artifact: LoadedArtifact, rows: tuple[int, ...]) -> list[Tensor]:
    """Return a batch of contexts with so many rows each."""
    row_context = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64))
    contexts, candidates = (
        batch_of(artifact.signature, num, seed=seed) for seed, num in enumerate((len(rows), sum(rows)))
    )
    return list(ranking_batch(artifact.signature, contexts, candidates, row_context).inputs())


def test_a_direct_ranking_form_refuses_what_does_not_fit(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm(), context=("dense_features", "f0", "f2"))
    sound = ranking_inputs(own, (3, 2))
    dense, context_lengths, context_values, lengths, values, row_context = range(6)
    for at, make, text in [
        (dense, lambda x: x[:-1], "inputs: got"),
        (context_lengths, lambda x: x[:-1], "lengths: got|inputs: got"),
        (context_values, lambda x: x + 10**9, "values: got ID"),
        (lengths, lambda x: x[:-3], "inputs: got"),
        (values, lambda x: x[:-1], "lengths: got"),
        (row_context, lambda x: x[:-1], "inputs: got"),
        (row_context, lambda x: x + 1, "index out of range"),
        (row_context, lambda x: x - 1, "index out of range"),
        (row_context, lambda x: x.float(), "index"),
    ]:
        inputs = list(sound)
        inputs[at] = make(sound[at])
        with pytest.raises(RuntimeError, match=text):
            own.forward_ranking(*inputs)
    own.forward_ranking(*sound)


@pytest.mark.parametrize("policy", [IdPolicy.REJECT, IdPolicy.HASH, IdPolicy.ZERO, IdPolicy.FMIX64])
def test_checks_and_policies_are_part_of_the_plan(tmp_path: Path, policy: IdPolicy) -> None:
    _, own = loaded(tmp_path / "a", dlrm(), id_policy=policy)
    found = torchscript.operators(own.module)
    assert not {kind for kind in found if kind.startswith("fbgemm::")}
    assert found["recsys_ops::plan"] == 1


def test_mixed_policies_are_part_of_the_plan(tmp_path: Path) -> None:
    policies = {"t0": IdPolicy.HASH, "t1": IdPolicy.ZERO, "t2": IdPolicy.FMIX64}
    plain, own = loaded(tmp_path / "a", dlrm(), table_id_policies=policies)
    assert torchscript.operators(own.module)["recsys_ops::plan"] == 1
    dense, lengths, values = batch_of(plain.signature, 30).inputs()
    of_slot = torch.repeat_interleave(torch.arange(len(FEATURES)), lengths.view(-1, 30).sum(1))
    for wrong in (-1, 10**6, 2**63 - 1, -(2**63)):
        changed = torch.where(of_slot < 3, wrong, values)
        for output, expected in plain.forward(dense, lengths, changed).items():
            assert_near(own.forward(dense, lengths, changed)[output], expected, "float32")
        for artifact in (plain, own):
            with pytest.raises(RuntimeError):
                artifact.forward(dense, lengths, torch.where(of_slot == 3, wrong, values))


def plan_of(artifact: LoadedArtifact) -> tuple[Any, ...]:
    """Return what a graph's plan is called with, but for its inputs."""
    graph: Any = artifact.module.graph
    (node,) = graph.findAllNodes("recsys_ops::plan")
    plan, _, *rest = (value.toIValue() for value in node.inputs())
    return plan, *rest


def called(artifact: LoadedArtifact, plan: Tensor, inputs: list[Tensor]) -> Any:
    _, constants, *rest = plan_of(artifact)
    return torch.ops.recsys_ops.plan(plan, inputs, constants, *rest)


def test_a_plan_refuses_inputs_that_do_not_fit(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 6).inputs()
    for inputs, text in [
        ((dense[:-1], lengths, values), r"inputs: got \[5, 5\], expected 5 numbers for each of 6 rows"),
        ((dense.double(), lengths, values), "inputs: got Double, expected float32"),
        ((dense, lengths[:-1], values), "lengths: got 29, expected a multiple of 5"),
        ((dense, lengths, values[:-1]), "lengths: got"),
        ((dense, lengths, values - 10**6), "values: got ID"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            own.forward(*inputs)
        with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
            own.module.forward(*inputs)


def is_direct(artifact: LoadedArtifact, form: int = 0) -> bool:
    """Return whether a graph is called without TorchScript's interpreter."""
    return type(artifact.graphs.calls[form]).__name__ == "Program"


@pytest.mark.parametrize("name", MODELS)
def test_one_plan_is_called_directly_with_the_same_bits(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", MODELS[name]())
    assert is_direct(own)
    assert not is_direct(plain)
    for num_rows in (1, 2, 49):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        found = own.forward(*inputs)
        expected = own.module.forward(*inputs)
        assert list(found) == list(expected)
        assert all(torch.equal(found[output], expected[output]) for output in expected)


def test_direct_calls_take_views_and_run_side_by_side(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 20).inputs()
    (expected,) = own.forward(dense, lengths, values).values()
    views = (dense.t().contiguous().t(), lengths.repeat_interleave(2)[::2], values.repeat_interleave(2)[::2])
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: own.forward(*views).values(), range(50)):
            assert torch.equal(found, expected)


def test_direct_calls_refuse_what_is_no_input(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 6).inputs()
    for inputs, text in [
        ((dense, lengths), "inputs: got 2 tensors, expected 3"),
        ((dense.to("meta"), lengths, values), "expected a tensor in host memory"),
        ((dense, lengths.to_sparse(), values), "expected a tensor in host memory"),
        ((dense, lengths, values.int()), "expected int64"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            own.graphs.calls[0](*inputs)
    with pytest.raises(RuntimeError, match="Unable to cast"):
        own.graphs.calls[0](dense, lengths, 3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("isa")
def test_wrong_plans_are_refused(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    plan = plan_of(own)[0]
    inputs = list(batch_of(own.signature, 6).inputs())
    with pytest.raises(ValueError, match="plan: got numbers that are no plan of version 4"):
        called(own, plan + 2, inputs)
    with pytest.raises(ValueError, match="which are not those of a plan"):
        called(own, plan[:-1], inputs)
    with pytest.raises(TypeError, match="plan: got Int"):
        called(own, plan.int(), inputs)
    refused = 0
    for at in range(len(plan)):
        for value in (-1, 7, 2**40, -(2**63)):
            changed = plan.clone()
            changed[at] = value
            # Whatever the numbers say, no memory outside the tensors is touched.
            try:
                called(own, changed, inputs)
            except (RuntimeError, ValueError, TypeError):
                refused += 1
    assert refused > len(plan)


def test_torch_can_check_and_trace_plans(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    plan, *rest = plan_of(own)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    inputs = list(batch_of(own.signature, 6).inputs())
    torch.library.opcheck(torch.ops.recsys_ops.plan.default, (plan, inputs, *rest), test_utils=checks)


class Mixed(nn.Module):
    """Rows of which a part is computed by operators that mix the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f"]), bag("u", 30, 8, ["g"])])
        self.first, self.second, self.third = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features).values()
        first = torch.relu(self.first(pooled))
        second = torch.sigmoid(self.second(first))
        centered = second - second.sum(dim=0, keepdim=True)
        score = self.third(torch.cat((first, centered), dim=1))
        return {"score": score.squeeze(1), "second": second, "shaped": first.reshape(-1, 2, 4)}


class Scaled(nn.Module):
    """Rows, and what a function makes of them."""

    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(tables=[bag("t", 20, 20, ["f"]), bag("u", 30, 20, ["g"])])
        self.scale = scale

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features).values()
        return {"pooled": pooled, "scaled": self.scale(pooled)}


class NormOfVectors(nn.Module):
    """A norm of each of the vectors of which a row is made."""

    def __init__(self, dim: int, **options: bool) -> None:
        super().__init__()
        self.dim, self.norm = dim, nn.LayerNorm(dim, **options)

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.norm(x.view(x.size(0), -1, self.dim))
        return vectors.flatten(1)


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": nn.LayerNorm(40),
    "layer_norm_of_vectors": NormOfVectors(8),
    "layer_norm_without_bias": NormOfVectors(20, bias=False),
    "layer_norm_without_weights": lambda x: functional.layer_norm(x, (40,), eps=0.1),
    "viewed": lambda x: x.view(x.size(0), 5, 8).sum(dim=1),
    "one_number": lambda x: torch.sigmoid(x.sum(dim=1, keepdim=True)).flatten(),
    "normalize": lambda x: functional.normalize(x, dim=1),
    "normalize_last": lambda x: functional.normalize(x, dim=-1, eps=0.5),
    "length": lambda x: x.norm(dim=1),
    "vector_norm": lambda x: x * torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "clamped": lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=0.3),
    "total": lambda x: torch.sigmoid((x / 3).sum(dim=1)),
    "share": lambda x: torch.clamp_min(x, 0.25) / torch.clamp_min(x, 0.25).sum(dim=-1, keepdim=True),
    "quotient": lambda x: torch.relu(x) / (torch.sigmoid(x) * 2),
    "sum_of_vectors": lambda x: (
        x.view(-1, 5, 8).sum(dim=1, keepdim=True).squeeze(1) - x.view(-1, 5, 8).select(1, 2)
    ),
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.usefixtures("isa")
def test_norms_sums_and_quotients_are_steps(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", Scaled(SCALES[name]))
    left = {kind for kind in torchscript.operators(own.module) if not kind.startswith("prim::")}
    assert left - {"aten::reshape"} == {"recsys_ops::plan"}
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert found[output].shape == expected.shape
            torch.testing.assert_close(found[output], expected, rtol=1e-5, atol=1e-6)


#: What no step computes: norms of other kinds, and over other or several dimensions; divisors with more numbers than
#: what they divide; quotients that are rounded.
LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "norm_of_all": lambda x: functional.layer_norm(x.view(-1, 5, 8), (5, 8)),
    "one_norm": lambda x: x / x.norm(p=1.0, dim=1, keepdim=True).clamp_min(1e-6),
    "vectors": lambda x: x.view(-1, 5, 8).norm(dim=2),
    "wider": lambda x: x.sum(dim=1, keepdim=True) / torch.clamp_min(x, 0.25),
    "floor": lambda x: torch.div(x, 0.125, rounding_mode="floor"),
    "bounds": lambda x: torch.clamp(x[:, :1], min=x),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_norms_and_quotients_stay_as_they_are(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", Scaled(LEFT[name]))
    for num_rows in (1, 2, 50):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert torch.equal(found[output], expected)


@pytest.mark.usefixtures("isa")
def test_what_mixes_rows_parts_a_graph_into_plans(tmp_path: Path) -> None:
    plain, own = loaded(tmp_path / "a", Mixed(), batch="request")
    assert torchscript.operators(own.module)["recsys_ops::plan"] == 1
    for num_rows in (1, 2, 50):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


def test_steps_stay_nodes_without_plans(tmp_path: Path) -> None:
    plain, _ = loaded(tmp_path / "a", dlrm())
    exchanged = operators.exchange(plain.module, "float32", plans=False)
    assert exchanged.num_planned == 0
    found = torchscript.operators(plain.module)
    assert (found["recsys_ops::linear"], found["recsys_ops::lookup"]) == (4, 1)
