"""Programs of which torch computes a part, against the TorchScript graphs and the model."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, KeyedJaggedTensor
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.errors import ManifestError
from tests.export.lower import test_computed_ids, test_effects, test_single_ids
from tests.export.lower.test_lowering import Scored
from tests.export.lower.test_regions import REGIONS, tied
from tests.native.program_models import ranking_inputs
from tests.native.programs.test_programs import PART, with_header, write_delta
from tests.recsys.artifact.damage import Json, resize_part
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import arguments, batch_of, predicted

pytestmark = needs_kernels

CASES = {**test_single_ids.CASES, **test_effects.CASES, **test_computed_ids.CASES}


def both_forms(
    path: Path, make: Callable[[], nn.Module], **options: Any
) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Export a model, and return it as a program and as TorchScript."""
    export_model(make().eval(), path, ExportConfig(**options))
    own = load_artifact(path)
    assert isinstance(own.graphs, ProgramGraphs)
    return own, load_artifact(path, scripted=True)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", REGIONS)
def test_the_answers_are_those_of_torchscript(tmp_path: Path, name: str) -> None:
    make, _ = REGIONS[name]
    own, plain = both_forms(
        tmp_path / "a", make, **({"dense_widths": {"price": 2}} if name == "mapped IDs" else {})
    )
    for num_rows in (1, 2, 49, 130):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert_close(own.forward(*inputs), plain.forward(*inputs))


@pytest.mark.parametrize(
    "name", ["several", "one after the other", "whole numbers", "rows of constants alone", "mapped IDs"]
)
def test_ranking_forms_have_regions_too(tmp_path: Path, name: str) -> None:
    make, _ = REGIONS[name]
    options: dict[str, Any] = {"context": ("f",)}
    if name == "mapped IDs":
        options = {"context": ("user", "price"), "dense_widths": {"price": 2}}
    own, plain = both_forms(tmp_path / "a", make, **options)
    signature = own.signature
    for counts in ((1,), (3, 2), (20, 0, 9)):
        row_context = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        contexts, rows = batch_of(signature, len(counts), seed=1), batch_of(signature, sum(counts), seed=2)
        inputs = ranking_batch(signature, contexts, rows, row_context).inputs()
        assert_close(own.forward_ranking(*inputs), plain.forward_ranking(*inputs))


def test_rows_of_a_request_are_compared(tmp_path: Path) -> None:
    own, plain = both_forms(
        tmp_path / "a", lambda: Scored(lambda m, x: m.over(x - x.mean(dim=0))), batch="request"
    )
    for num_rows in (2, 49):
        inputs = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        assert_close(own.forward(*inputs), plain.forward(*inputs))


class Vectors(Scored):
    """Returns vectors, and truth values."""

    def __init__(self) -> None:
        super().__init__(lambda _, x: x)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[override]
        found = super().forward(features)
        return {"vectors": found.view(-1, 2, 8), "is_large": found[:, 0] > 0, "score": found.sum(dim=1)}


def test_outputs_that_are_no_rows_of_numbers(tmp_path: Path) -> None:
    own, plain = both_forms(tmp_path / "a", Vectors)
    inputs = batch_of(own.signature, 9, seed=0).inputs()
    found = own.forward(*inputs)
    assert found["vectors"].shape == (9, 2, 8)
    assert_close(found, plain.forward(*inputs))


def test_deltas_change_what_regions_compute_with(tmp_path: Path) -> None:
    half = nn.Parameter(torch.tensor([0.5]))
    make = lambda: Scored(lambda m, x: torch.erfinv(torch.tanh(m.over(x)) * m.w), w=half)  # noqa: E731
    own, plain = both_forms(tmp_path / "a", make)
    changed = {"model.w": torch.tensor([0.25]), "model.over.weight": torch.randn(1, 16)}
    inputs = batch_of(own.signature, 9, seed=0).inputs()
    before = own.forward(*inputs)
    for name, artifact in (("own", own), ("plain", plain)):
        write_delta(tmp_path / name, artifact, changed)
    undo = apply(prepare(own.rows, tmp_path / "own"))
    apply(prepare(plain.rows, tmp_path / "plain"))
    assert_close(own.forward(*inputs), plain.forward(*inputs))
    assert not torch.equal(own.forward(*inputs)["default"], before["default"])
    apply(undo)
    assert torch.equal(own.forward(*inputs)["default"], before["default"])


def test_deltas_change_a_weight_that_a_region_knows_by_another_name(tmp_path: Path) -> None:
    make = lambda: tied(Scored(lambda m, x: m.over(x) + linear(x, torch.exp(m.second.weight))))  # noqa: E731
    own, plain = both_forms(tmp_path / "a", make)
    inputs = batch_of(own.signature, 9, seed=0).inputs()
    for name, artifact in (("own", own), ("plain", plain)):
        write_delta(tmp_path / name, artifact, {"model.over.weight": torch.ones(1, 16)})
        apply(prepare(artifact.rows, tmp_path / name))
    assert_close(own.forward(*inputs), plain.forward(*inputs))


class OfOneId(Scored):
    """Scores the IDs themselves, of which the samples have one in each bag, and sums them up by bag."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[override]
        ids = features["f"]
        scores = torch.erfinv(torch.sin(ids.values().float()) * 0.9).abs()
        of_rows = torch.segment_reduce(scores, "max", lengths=ids.lengths(), initial=0)
        odd = torch.erfinv(torch.tanh(super().forward(features)) * 0.9)
        return torch.digamma(torch.relu(odd) + 1) * of_rows.unsqueeze(1)


def test_what_samples_have_once_in_each_row_is_no_row(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    sparse = {"f": [[i % 20] for i in range(40)], "g": [[i % 7] for i in range(40)]}
    samples.write_text(json.dumps({"sparse": sparse}))
    own, plain = both_forms(tmp_path / "a", lambda: OfOneId(lambda m, x: m.over(x)), samples=samples)
    inputs = batch_of(own.signature, 30, seed=0).inputs()
    assert_close(own.forward(*inputs), plain.forward(*inputs))


@pytest.mark.parametrize("name", ["computed IDs", "mapped IDs"])
def test_lengths_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    make, _ = REGIONS[name]
    own, _ = both_forms(
        tmp_path / "a", make, **({"dense_widths": {"price": 2}} if name == "mapped IDs" else {})
    )
    *dense, lengths, values = batch_of(own.signature, 5, seed=0).inputs()
    for wrong in (
        [6, *[0] * (len(lengths) - 1)],
        [-1, *[1] * (len(lengths) - 1)],
        [2**40, *[0] * (len(lengths) - 1)],
    ):
        with pytest.raises((RuntimeError, ValueError)):
            own.forward(*dense, torch.tensor(wrong), values[:5])


WRONG: dict[str, tuple[Callable[[Json, Json], object], str]] = {
    "no script": (
        lambda header, _: header.pop("regions.1"),
        r"steps\[1\].script: got 'regions.1', expected a tensor",
    ),
    "an input": (lambda _, about: about["steps"][1].update(inputs=[9]), r"inputs: got '9', expected"),
    "too many inputs": (
        lambda _, about: about["steps"][1].update(inputs=[0, 0]),
        "a region takes 1 tensors, expected 2",
    ),
    "outputs": (lambda _, about: about["steps"][1].update(num_outputs=2), "expected 2 tensors"),
    "no outputs": (lambda _, about: about["steps"][1].update(num_outputs=0), "num_outputs: got '0'"),
    "weights": (
        lambda _, about: about["steps"][1].update(weights={"a": 3}),
        "weights: got '3', expected paths",
    ),
    "a kind": (lambda _, about: about["steps"][1].update(kind="x"), "kind: got 'x', expected"),
    "the type": (lambda header, _: header["regions.1"].update(dtype="I8"), "expected a tensor of uint8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_regions_are_refused(tmp_path: Path, name: str) -> None:
    both_forms(tmp_path / "a", REGIONS["an operator without a step"][0])
    part = tmp_path / "a" / PART
    change, text = WRONG[name]
    part.write_bytes(with_header(part.read_bytes(), change))
    resize_part(tmp_path / "a", PART)
    with pytest.raises(ManifestError, match=text):
        load_artifact(tmp_path / "a")


@pytest.mark.parametrize("at", [0, 900, -30])
def test_damaged_scripts_are_refused(tmp_path: Path, at: int) -> None:
    both_forms(tmp_path / "a", REGIONS["an operator without a step"][0])
    part = tmp_path / "a" / PART
    data = bytearray(part.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8 : 8 + length])["regions.1"]["data_offsets"]
    place = 8 + length + (begin + at if at >= 0 else end + at)
    data[place : place + 8] = bytes(8 * [0xA5])
    part.write_bytes(data)
    resize_part(tmp_path / "a", PART)
    with pytest.raises(ManifestError, match=r"regions\.1: not readable as TorchScript"):
        load_artifact(tmp_path / "a")


def assert_rounded(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal within the rounding of the largest number."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        largest = float(want.abs().max()) if want.numel() else 0.0
        torch.testing.assert_close(found[name], want, rtol=1e-5, atol=2e-6 * (1 + largest))


@pytest.mark.parametrize("name", CASES)
def test_the_answers_of_models_with_regions(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.make().eval()
    targets = (("cpu",), ("cpu", "cpu"))
    config = ExportConfig(data_type=DataType.FP32, context=case.context, targets=targets)
    export_model(model, tmp_path / "a", config)
    for target in ("cpu", "cpu,cpu"):
        own = load_artifact(tmp_path / "a", target=target)
        plain = load_artifact(tmp_path / "a", target=target, scripted=True)
        assert isinstance(own.graphs, ProgramGraphs)
        signature = own.signature
        for num_rows in (0, 1, 3, 17, 1025) if target == "cpu" else (17,):
            for empty in (False, True):
                batch = batch_of(signature, num_rows, seed=num_rows, empty=empty)
                found = own.forward(*batch.inputs())
                assert_rounded(found, plain.forward(*batch.inputs()))
                if num_rows:
                    assert_rounded(found, predicted(model, arguments(signature, batch, case.sparse)))
        for sizes in ((1, 1), (60, 7)) if case.context else ():
            inputs = ranking_inputs(own, sizes)
            assert_rounded(own.forward_ranking(*inputs), plain.forward_ranking(*inputs))
