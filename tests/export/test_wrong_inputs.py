"""An artifact that is called with tensors that disagree raises; nothing is read past its end.

Shape letters: N number of IDs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.load import LoadedArtifact, load_artifact


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    table = EmbeddingBagConfig(name="t", num_embeddings=10, embedding_dim=4, feature_names=["f"])
    path: Path = tmp_path_factory.mktemp("weighted") / "artifact"
    export_model(EmbeddingBagCollection([table], is_weighted=True), path)
    return load_artifact(path)


LENGTHS, IDS = torch.tensor([1, 2]), torch.tensor([1, 2, 3])


@pytest.mark.parametrize("num_weights", [0, 1, 2, 4])
def test_weights_are_as_many_as_ids(weighted: LoadedArtifact, num_weights: int) -> None:
    with pytest.raises(RuntimeError, match=r"invalid for input of size|weights: got Float"):
        weighted.forward(LENGTHS, IDS, torch.ones(num_weights))


@pytest.mark.parametrize(
    "weights",
    [torch.ones(3, dtype=torch.float64), torch.ones(6)[::2], torch.ones(3, dtype=torch.bfloat16)],
    ids=["float64", "not contiguous", "bfloat16"],
)
def test_weights_of_any_float_form_count_the_same(weighted: LoadedArtifact, weights: torch.Tensor) -> None:
    expected = weighted.forward(LENGTHS, IDS, torch.ones(3))["f"]
    assert torch.equal(weighted.forward(LENGTHS, IDS, weights)["f"], expected)


@pytest.mark.parametrize(
    ("lengths", "ids"),
    [(LENGTHS, IDS.int()), (LENGTHS, IDS.double()), (LENGTHS.double(), IDS), (LENGTHS.bool(), IDS)],
    ids=["int32 ids", "float ids", "float lengths", "bool lengths"],
)
def test_other_dtypes_raise(weighted: LoadedArtifact, lengths: torch.Tensor, ids: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        weighted.forward(lengths, ids, torch.ones(3))


def test_ids_need_not_be_contiguous(weighted: LoadedArtifact) -> None:
    spread = torch.tensor([1, 9, 2, 9, 3, 9])[::2]
    expected = weighted.forward(LENGTHS, IDS, torch.ones(3))["f"]
    assert torch.equal(weighted.forward(LENGTHS, spread, torch.ones(3))["f"], expected)


def test_int32_lengths_answer_right_and_may_not_lie(weighted: LoadedArtifact) -> None:
    expected = weighted.forward(LENGTHS, IDS, torch.ones(3))["f"]
    assert torch.equal(weighted.forward(LENGTHS.int(), IDS, torch.ones(3))["f"], expected)
    for lies in ([1, 3], [1, 1], [4, -1], [-1, 4], [2**31 - 1, 2**31 - 1]):
        with pytest.raises(RuntimeError):
            weighted.forward(torch.tensor(lies, dtype=torch.int32), IDS, torch.ones(3))
