"""Programs of which torch computes a part, against the model and its TorchScript graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType
from recsys.artifact.load import load_artifact
from recsys.artifact.programs import ProgramGraphs
from tests.export.lower import test_computed_ids, test_effects, test_single_ids
from tests.native.program_models import ranking_inputs
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import arguments, batch_of, predicted

pytestmark = needs_kernels

CASES = {**test_single_ids.CASES, **test_effects.CASES, **test_computed_ids.CASES}


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal within the rounding of the largest number."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        largest = float(want.abs().max()) if want.numel() else 0.0
        torch.testing.assert_close(found[name], want, rtol=1e-5, atol=2e-6 * (1 + largest))


@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_those_of_the_model(tmp_path: Path, name: str) -> None:
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
                assert_close(found, plain.forward(*batch.inputs()))
                if num_rows:
                    assert_close(found, predicted(model, arguments(signature, batch, case.sparse)))
        for sizes in ((1, 1), (60, 7)) if case.context else ():
            inputs = ranking_inputs(own, sizes)
            assert_close(own.forward_ranking(*inputs), plain.forward_ranking(*inputs))
