"""Features whose bags must have equal lengths: found by the trace, or told; and what follows for rows that are made.

Shape letters: B batch, N number of IDs, D embedding dim.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.batches.answers import made_batch
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ExportError, ManifestError
from recsys.inputs.signature import Signature
from recsys.ops import fbgemm
from tests.support.helpers import sequence

DIM = 4


class Sequences(nn.Module):
    """Two sequences with tables, and times without one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = EmbeddingCollection(
            [sequence(name, 30, DIM, [name]) for name in ("item", "shop", "user")]
        )
        self.layer = nn.Linear(2 * DIM, 1)


class SideBySide(Sequences):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        rows = self.layer(torch.cat([found["shop"].values(), found["item"].values()], dim=1))
        user = found["user"].to_padded_dense(1).sum((1, 2))
        return fbgemm.jagged_to_padded_dense(rows, [found["item"].offsets()], [5], 0.0).sum((1, 2)) + user


class Added(Sequences):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        rows = found["item"].values() * torch.sigmoid(found["shop"].values() + 1)
        return fbgemm.jagged_to_padded_dense(rows, [found["shop"].offsets()], [5], 0.0).sum((1, 2))


class OtherOffsets(Sequences):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        times = features["time"].values().float().unsqueeze(1)
        offsets = fbgemm.asynchronous_complete_cumsum(found["item"].lengths())
        padded = fbgemm.jagged_to_padded_dense(times, [offsets], [5], 0.0).sum((1, 2))
        return padded * 1e-3 + found["item"].to_padded_dense(5).sum((1, 2))


class Bmm(Sequences):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        items, shops, users = (found[name] for name in ("item", "shop", "user"))
        return fbgemm.jagged_jagged_bmm(items.values(), shops.values(), users.offsets(), 5).sum((1, 2))


class Dense(Sequences):
    """Pads each by its own offsets: nothing is side by side."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        return sum(found[name].to_padded_dense(5).sum((1, 2)) for name in ("item", "shop", "user"))  # type: ignore[no-any-return]


def exported(path: Path, model: nn.Module, **options: object) -> LoadedArtifact:
    export_model(model.eval(), path, ExportConfig(**options))  # type: ignore[arg-type]
    return load_artifact(path)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SideBySide, {"shop": "item"}),
        (Added, {"shop": "item"}),
        (OtherOffsets, {"time": "item"}),
        (Bmm, {"shop": "item", "user": "item"}),
        (Dense, {}),
    ],
)
def test_the_trace_tells_which_lengths_are_equal(
    tmp_path: Path, model: type[Sequences], expected: dict[str, str]
) -> None:
    loaded = exported(tmp_path / "a", model())
    found = {use.name: use.same_lengths_as for use in loaded.signature.sparse if use.same_lengths_as}
    assert found == expected
    assert Signature.from_json(loaded.signature.to_json()) == loaded.signature


def test_lengths_that_the_user_tells_are_equal(tmp_path: Path) -> None:
    loaded = exported(tmp_path / "a", SideBySide(), same_lengths=(("user", "shop"),))
    assert [use.same_lengths_as for use in loaded.signature.sparse] == ["", "item", "item"]
    assert loaded.manifest.options["same_lengths"] == [["user", "shop"]]


def test_equal_lengths_of_unknown_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"equal lengths of \['shops'\], expected some of"):
        exported(tmp_path / "a", SideBySide(), same_lengths=(("item", "shops"),))


def test_made_and_random_rows_have_equal_lengths(tmp_path: Path) -> None:
    signature = exported(tmp_path / "a", SideBySide()).signature
    for batch in (made_batch(signature, 9), random_batch(signature, 9, torch.Generator().manual_seed(3))):
        item, shop, _ = batch.lengths.view(3, 9)
        assert torch.equal(item, shop)


def test_a_batch_of_unequal_lengths_is_refused_without_a_server_too(tmp_path: Path) -> None:
    export_model(SideBySide(), tmp_path / "a")
    artifact = load_artifact(tmp_path / "a")
    batch = random_batch(artifact.signature, 3, torch.Generator().manual_seed(0))
    lengths = batch.lengths.view(len(artifact.signature.sparse), -1).clone()
    names = [use.name for use in artifact.signature.sparse]
    lengths[names.index("shop"), 1] += 1
    said = r"lengths: got \d+ in row 1, expected \d+, as many as '(item|shop)' has there"
    with pytest.raises(ValueError, match=said):
        artifact.forward(lengths.view(-1), batch.values)


def test_samples_of_unequal_lengths_are_refused(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"sparse": {"item": [[1, 2], [3]], "shop": [[4, 5], [6, 7]], "user": [[1], [2]]}}')
    with pytest.raises(
        ValueError, match=r"'shop', row 1: got 2 IDs, expected 1, as many as 'item' has there"
    ):
        exported(tmp_path / "a", SideBySide(), samples=samples)


@pytest.mark.parametrize("other", ["user", "shop", "nobody"])
def test_a_manifest_that_names_no_input_before_is_refused(tmp_path: Path, other: str) -> None:
    data = exported(tmp_path / "a", SideBySide()).signature.to_json()
    data["sparse"][1]["same_lengths_as"] = other
    with pytest.raises(ManifestError, match="same_lengths_as"):
        Signature.from_json(data)
