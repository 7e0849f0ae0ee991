"""Dense weights in deltas: with the delta, an artifact is what a fresh export of the new checkpoint is.

Shape letters: D embedding dim.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.cli import main
from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.delta.report import DeltaReport
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.ranking import RankingBatch, ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import read_manifest
from recsys.errors import DeltaError, ExportError
from tests.export.delta.test_delta import trained, with_dense
from tests.recsys.artifact.damage import lie, without_torchscript
from tests.recsys.artifact.delta.deltas import header_of
from tests.support.helpers import bag
from tests.support.models.export_models import CASES, CopyCase, ModelCase, batch_of, dlrm

NUM_ROWS = 40
CONTEXT = ("f0", "f2")


def delta_of(old: nn.Module, new: nn.Module, path: Path, artifact: Path, **options: Any) -> DeltaReport:
    return export_delta(old, new, path, DeltaConfig(artifact=artifact, **options))


def plain_batch(artifact: LoadedArtifact) -> Batch:
    return batch_of(artifact.signature, NUM_ROWS)


def contexts_batch(artifact: LoadedArtifact) -> RankingBatch:
    batch = plain_batch(artifact)
    return ranking_batch(artifact.signature, batch, batch, torch.arange(NUM_ROWS) % 7)


def assert_same(found: LoadedArtifact, fresh: LoadedArtifact) -> None:
    """Both predict the same, bit by bit, in both forms."""
    inputs = plain_batch(fresh).inputs()
    for name, expected in fresh.forward(*inputs).items():
        assert torch.equal(found.forward(*inputs)[name], expected), name
    if fresh.signature.context:
        inputs = contexts_batch(fresh).inputs()
        for name, expected in fresh.forward_ranking(*inputs).items():
            assert torch.equal(found.forward_ranking(*inputs)[name], expected), name


def differ(one: LoadedArtifact, other: LoadedArtifact) -> bool:
    inputs = plain_batch(one).inputs()
    found = other.forward(*inputs)
    return any(not torch.equal(tensor, found[name]) for name, tensor in one.forward(*inputs).items())


def check(
    old: nn.Module, new: nn.Module, folder: Path, config: ExportConfig, *, is_single: bool = False
) -> DeltaReport:
    """Export both, but for an old one that is there, and assert that the delta makes of one the other, for all targets,
    and back.
    """
    if not (folder / "old").exists():
        export_model(old, folder / "old", config)
    export_model(new, folder / "new", config)
    report = delta_of(old, new, folder / "d", folder / "old")
    for target in (None,) if is_single else [",".join(devices) for devices in config.targets]:
        artifact = load_artifact(folder / "old", target=target)
        before = load_artifact(folder / "old", target=target)
        fresh = load_artifact(folder / "new", target=target)
        assert differ(artifact, fresh)
        prepared = prepare(artifact.rows, folder / "d")
        assert_same(artifact, before)  # preparing changes nothing
        undo = apply(prepared)
        assert_same(artifact, fresh)
        assert torch.equal(artifact.rows.ranks[0].rows, fresh.rows.ranks[0].rows)
        apply(undo)
        assert_same(artifact, before)
        assert artifact.rows.dense == {}
        apply(prepare(artifact.rows, folder / "d"))
        assert_same(artifact, fresh)
    return report


@pytest.mark.parametrize("name", ["dlrm", "sequences", "weighted and unweighted"])
def test_rows_and_dense_weights(tmp_path: Path, name: str, copy_case: CopyCase) -> None:
    case: ModelCase = CASES[name]
    old = case.make()
    copy_case(name, tmp_path / "old")
    report = check(
        old, with_dense(trained(old)), tmp_path, ExportConfig(table_data_types=case.table_data_types)
    )
    assert report.tables
    assert report.num_dense > 0
    assert report.num_dense_left == 0
    assert header_of(tmp_path / "d")["format_version"] == 2


def test_dense_weights_alone(tmp_path: Path, copy_case: CopyCase) -> None:
    old = dlrm()
    copy_case("dlrm", tmp_path / "old")
    report = check(old, with_dense(old), tmp_path, ExportConfig())
    assert report.tables == ()
    names = [weight["name"] for weight in header_of(tmp_path / "d")["dense"]]
    assert names == [f"model.{n}" for n, _ in old.named_parameters() if "embedding_bags" not in n]


def test_only_weights_that_changed_are_sent(tmp_path: Path, copy_case: CopyCase) -> None:
    old = dlrm()
    copy_case("dlrm", tmp_path / "old")
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.over_arch.model[1].bias += 1
    assert check(old, new, tmp_path, ExportConfig()).num_dense == 1


def test_all_targets_and_the_ranking_form_in_bfloat16(tmp_path: Path) -> None:
    old = dlrm()
    config = ExportConfig(targets=(("cpu",), ("cpu", "cpu")), context=CONTEXT, dense_dtype="bfloat16")
    check(old, with_dense(trained(old)), tmp_path, config)
    assert {weight["dtype"] for weight in header_of(tmp_path / "d")["dense"]} == {"bfloat16"}


def test_programs_are_compared_where_there_is_no_torchscript(tmp_path: Path) -> None:
    old = dlrm()
    new = with_dense(trained(old))
    export_model(old, tmp_path / "old", ExportConfig(context=CONTEXT))
    alone = without_torchscript(tmp_path / "old", tmp_path / "alone")
    headers = []
    for artifact in (tmp_path / "old", alone):
        assert delta_of(old, new, tmp_path / "d", artifact, overwrite=True).num_dense > 0
        headers.append({w["name"]: w["values"]["sha256"] for w in header_of(tmp_path / "d")["dense"]})
    assert headers[0] == headers[1]
    lie(alone, lambda data: data["targets"][0]["ranking"].pop("program"))
    with pytest.raises(ExportError, match="target 'cpu' holds neither TorchScript nor a program"):
        delta_of(old, new, tmp_path / "e", alone)


def test_changes_below_bfloat16_are_none(tmp_path: Path) -> None:
    old = dlrm()
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.over_arch.model[1].weight[0, 0].mul_(1 + 1e-6)
    export_model(old, tmp_path / "old", ExportConfig(dense_dtype="bfloat16"))
    report = delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert report.num_dense == 0
    assert header_of(tmp_path / "d")["format_version"] == 1


def test_a_single_file(tmp_path: Path) -> None:
    old = dlrm()
    check(old, with_dense(trained(old)), tmp_path, ExportConfig(single_file=True), is_single=True)


class Folded(nn.Module):
    """Equal biases, which freezing merges; a product of weights, which it folds; a buffer; an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f"])])
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.third = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.full((8,), 2.0))
        self.unused = nn.Parameter(torch.zeros(3))
        self.norm = nn.BatchNorm1d(8)
        with torch.no_grad():
            self.first.bias.zero_()
            self.second.bias.zero_()
            self.second.weight.copy_(self.first.weight)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        x = self.norm(self.tables(features).values())
        x = x * (self.scale * self.scale + 1)
        return self.third(self.first(x) * self.second(x))


def test_weights_that_freezing_merges_and_folds(tmp_path: Path) -> None:
    old = Folded().eval()
    new = with_dense(old)
    new.norm.running_mean += 0.5
    report = check(old, new.eval(), tmp_path, ExportConfig())
    names = {weight["name"] for weight in header_of(tmp_path / "d")["dense"]}
    assert {"model.scale", "model.first.bias", "model.second.bias", "model.norm.running_mean"} <= names
    assert "model.unused" not in names
    assert report.num_dense == len(names)
    # And back to weights that are merged.
    delta_of(new, old, tmp_path / "back", tmp_path / "old", after=(tmp_path / "d",))
    artifact = load_artifact(tmp_path / "old")
    apply(prepare(artifact.rows, tmp_path / "d"))
    apply(prepare(artifact.rows, tmp_path / "back"))
    assert_same(artifact, load_artifact(tmp_path / "old"))


class Scaled(nn.Module):
    """A number that tracing makes of a weight."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f"])])
        self.register_buffer("scale", torch.tensor(scale))
        self.factor = scale

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.tables(features).values() * self.factor


def test_numbers_in_the_graph_are_refused(tmp_path: Path) -> None:
    old, new = Scaled(2.0).eval(), Scaled(3.0).eval()
    export_model(old, tmp_path / "old")
    with pytest.raises(ExportError, match="would have another graph than the artifact"):
        delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, number: float, copy_case: CopyCase) -> None:
    old = dlrm()
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.over_arch.model[1].bias.fill_(number)
    copy_case("dlrm", tmp_path / "old")
    with pytest.raises(ExportError, match=r"dense weight 'model.over_arch.model.1.bias': got a number"):
        delta_of(old, new, tmp_path / "d", tmp_path / "old")


def test_chains(tmp_path: Path, copy_case: CopyCase) -> None:
    """Rows, dense weights and both, one after the other; weights that were left before come with the next."""
    models = [dlrm()]
    for seed, change in enumerate((trained, with_dense, trained, with_dense)):
        models.append(change(models[-1], seed=seed))
    copy_case("dlrm", tmp_path / "0")
    deltas: list[Path] = []
    for at, (old, new) in enumerate(itertools.pairwise(models)):
        deltas.append(tmp_path / f"{at}.delta")
        delta_of(old, new, deltas[at], tmp_path / "0", after=tuple(deltas[:at]), tables_only=at == 1)
    artifact = load_artifact(tmp_path / "0")
    for at, path in enumerate(deltas):
        apply(prepare(artifact.rows, path))
        if at != 1:
            export_model(models[at + 1], tmp_path / f"{at + 1}")
            assert_same(artifact, load_artifact(tmp_path / f"{at + 1}"))
    with pytest.raises(DeltaError):
        prepare(artifact.rows, deltas[-1])


class _WithDefault(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(8, 4)

    def forward(self, features: KeyedJaggedTensor, bias: Tensor | None = None) -> Tensor:
        found: Tensor = self.layer(self.ebc(features).values())
        return found if bias is None else found + bias


def test_an_input_left_at_its_default(tmp_path: Path) -> None:
    old = _WithDefault()
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.layer.weight.add_(1.0)
    report = check(old, new, tmp_path, ExportConfig(defaults=("bias",)))
    assert report.num_dense == 1


class _Heads(nn.Module):
    """A tower for each of two outputs; one of them reads two arguments as one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user = EmbeddingBagCollection([bag("u", 20, 8, ["user", "age"])])
        self.item = EmbeddingBagCollection([bag("i", 20, 8, ["item"])])
        self.user_layer, self.item_layer = nn.Linear(16 + 4, 4), nn.Linear(8 + 4, 4)

    def forward(
        self, user: KeyedJaggedTensor, age: KeyedJaggedTensor, item: KeyedJaggedTensor, mean: Tensor
    ) -> dict[str, Tensor]:
        users = self.user(KeyedJaggedTensor.concat([user, age])).values()
        return {
            "user": self.user_layer(torch.cat([users, mean * 2], dim=1)),
            "item": self.item_layer(torch.cat([self.item(item).values(), mean * 2], dim=1)),
        }


class _Within(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.other = EmbeddingBagCollection([bag("o", 20, 8, ["f"])])
        self.heads = _Heads()


def make_within() -> nn.Module:
    return _Within()


_FEATURES = {"user": ("user",), "age": ("age",)}


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": ("user",)},
        {"outputs": ("item",)},
        {"outputs": ("item",), "context": ("mean",)},
        {},
    ],
    ids=str,
)
def test_options_of_forward(tmp_path: Path, options: dict[str, Any]) -> None:
    old = _Heads()
    config = ExportConfig(features=_FEATURES, dense_widths={"mean": 4}, **options)
    report = check(old, with_dense(trained(old)), tmp_path, config)
    assert report.num_dense == 4 if not options else 2


def test_features_that_are_numbers(tmp_path: Path) -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])
            self.layer = nn.Linear(4, 2)

        def forward(self, features: KeyedJaggedTensor, prices: KeyedJaggedTensor) -> Tensor:
            price = prices["price"].to_padded_dense(2).sum(dim=1, keepdim=True)
            return self.layer(self.ebc(features).values() * price)

    old = Numbers()
    config = ExportConfig(features={"prices": ("price",)}, float_features=("prices",))
    assert check(old, with_dense(old), tmp_path, config).num_dense == 2


def test_a_part_of_the_model_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _Within()
    new = with_dense(trained(old))
    for name, model in (("old", old), ("new", new)):
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
    factory = ["--factory", f"{__name__}:make_within"]
    part = ["--submodule", "heads", "--outputs", "user", "--features", "user=user", "--features", "age=age"]
    for name in ("old", "new"):
        assert main([str(tmp_path / f"{name}.pt"), *factory, *part, "--dense-width", "mean=4"]) == 0
    both = [str(tmp_path / "old.pt"), str(tmp_path / "new.pt")]
    assert main(["--delta", *both, *factory]) == 0
    artifact = load_artifact(tmp_path / "old.artifact")
    apply(prepare(artifact.rows, tmp_path / "new.delta"))
    assert_same(artifact, load_artifact(tmp_path / "new.artifact"))
    capsys.readouterr()
    assert main(["--delta", *both, *factory, "--submodule", "other", "--force"]) == 1
    assert "--submodule: got 'other', expected 'heads'" in capsys.readouterr().err


def test_options_that_are_not_known_are_refused(tmp_path: Path) -> None:
    export_model(_Heads(), tmp_path / "a", ExportConfig(features=_FEATURES, dense_widths={"mean": 4}))
    manifest = read_manifest(tmp_path / "a")
    options = {"features": {"user": "user"}}
    (tmp_path / "a" / MANIFEST_NAME).write_text(replace(manifest, options=options).dumps())
    with pytest.raises(ExportError, match=r"manifest.options.features: got \"{'user': 'user'}\""):
        delta_of(_Heads(), with_dense(_Heads()), tmp_path / "d", tmp_path / "a")
