"""ExportedPrograms of traced models take batches of any size; they are compared with the TorchScript graph.

Shape letters: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.artifact.writing import export_graph, make_graphs
from export.config import ExportConfig
from export.graph.exported import save_exported
from export.prepare import prepare
from export.verify.float_model import float_outputs, with_outputs
from export.verify.reference import float_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.exported import load_exported
from recsys.artifact.inputs import checked_inputs
from recsys.errors import ExportError
from recsys.ops import fbgemm
from tests.support.helpers import bag
from tests.support.models.export_models import CASES, ExportedCase, assert_close, batch_of


def programs_of(model: nn.Module, path: Path, config: ExportConfig) -> list[nn.Module]:
    """The programs of a model's first target, read back."""
    prepared = prepare(model, config, lambda *_: None)
    prepared = with_outputs(prepared, float_outputs(prepared, float_model(prepared)))
    made = []
    for i, graph in enumerate(make_graphs(prepared, next(iter(prepared.stored.envs)), is_scripted=False)):
        save_exported(export_graph(prepared, graph, is_ranking=i > 0), path / f"{i}.pt2")
        with (path / f"{i}.pt2").open("rb") as file:
            made.append(load_exported(file).module())
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_program_answers_as_the_torchscript_graph(
    name: str, case_named: Callable[[str], ExportedCase], tmp_path: Path
) -> None:
    case, model, artifact = case_named(name)
    [found] = programs_of(model, tmp_path, ExportConfig(table_data_types=case.table_data_types))
    signature, rows = artifact.signature, artifact.rows.ranks[0].rows
    for num_rows in (0, 1, 2, 7, 40):
        inputs = batch_of(signature, num_rows, num_rows).inputs()
        with torch.no_grad():
            outputs = found(*checked_inputs(signature, inputs, is_ranking=False), rows)
        named = {output.name: tensor for output, tensor in zip(signature.outputs, outputs, strict=True)}
        assert_close(named, artifact.forward(*inputs))
    # The rows are not in the file.
    assert (tmp_path / "0.pt2").stat().st_size < 1 << 20


class Transposed(nn.Module):
    """Multiplies by a buffer's transposition, which is a constant of the graph."""

    candidates: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])
        self.register_buffer("candidates", torch.randn(7, 4))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).values() @ self.candidates.T


def test_transposed_constants_are_saved_without_warnings(tmp_path: Path) -> None:
    [found] = programs_of(Transposed(), tmp_path, ExportConfig())
    assert all(tensor.is_contiguous() for tensor in found.buffers())


class Rounded(nn.Module):
    """Calls operators of FBGEMM whose bounds are not known."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection([bag("users", 50, 16, ["user"])])

    def forward(self, user: KeyedJaggedTensor) -> Tensor:
        rounded = fbgemm.FloatToBfloat16Quantized(self.rows(user).values())
        return fbgemm.Bfloat16QuantizedToFloat(rounded)  # type: ignore[no-any-return]


def test_operators_that_trust_their_numbers_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"forward calls torch\.ops\.fbgemm\.FloatToBfloat16Quantized, which trusts"
    ):
        programs_of(Rounded().eval(), tmp_path, ExportConfig())
