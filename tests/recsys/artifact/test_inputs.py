"""A batch without rows: its answer follows from the signature, and no graph runs.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from tests.support.helpers import sequence
from tests.support.models.export_models import Folded, batch_of, exported


class _OverSequence(nn.Module):
    """Sums of segments, and the length of the batch's longest sequence, which no output has."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.ec(features)["f"]
        sums = torch.segment_reduce(rows.values(), "sum", lengths=rows.lengths(), axis=0)
        width = rows.lengths().max().to(torch.float32).clamp(min=1)
        return sums * width / width


MODELS: dict[str, Callable[[], nn.Module]] = {"folded": Folded, "over a sequence": _OverSequence}


@pytest.mark.parametrize("targets", [(("cpu",),), (("cpu", "cpu"),)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_fails_without_rows_exports_and_answers(
    tmp_path: Path, name: str, targets: tuple[tuple[str, ...], ...]
) -> None:
    _, artifact = exported(MODELS[name](), tmp_path / "a", targets=targets)
    found = artifact.forward(*batch_of(artifact.signature, 0).inputs())
    assert {key: list(tensor.shape) for key, tensor in found.items()} == {
        output.name: [0, *output.shape] for output in artifact.signature.outputs
    }
    assert all(tensor.dtype is torch.float32 for tensor in found.values())
    with pytest.raises(RuntimeError):
        artifact.module(*batch_of(artifact.signature, 0).inputs())


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    path = tmp_path_factory.mktemp("artifacts") / "a"
    exported(Folded(), path, context=("f",))
    return load_artifact(path)


def _ids(num: int) -> Tensor:
    return torch.zeros(num, dtype=torch.int64)


@pytest.mark.parametrize("num_contexts", [0, 1, 3])
def test_contexts_without_rows_are_answered(ranking: LoadedArtifact, num_contexts: int) -> None:
    found = ranking.forward_ranking(_ids(num_contexts), _ids(0), _ids(0), _ids(0), _ids(0))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "flat": (0, 16),
        "largest": (0, 2),
    }


WRONG: dict[str, tuple[Tensor, ...]] = {
    "an ID of no row": (_ids(0), _ids(1)),
    "too few inputs": (_ids(0),),
    "too many inputs": (_ids(0), _ids(0), _ids(0)),
    "another dtype": (torch.zeros(0), _ids(0)),
    "another number of dimensions": (torch.zeros(0, 2, dtype=torch.int64), _ids(0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_without_rows_are_refused(ranking: LoadedArtifact, case: str) -> None:
    with pytest.raises(RuntimeError, match="got"):
        ranking.forward(*WRONG[case])


def test_wrong_ranking_inputs_without_rows_are_refused(ranking: LoadedArtifact) -> None:
    with pytest.raises(RuntimeError, match="values"):
        ranking.forward_ranking(_ids(0), _ids(0), _ids(0), _ids(2), _ids(0))
