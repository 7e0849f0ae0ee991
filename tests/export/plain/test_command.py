"""Plain models by the command: checkpoints, factories with examples, explanations, deltas, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.cli import main
from export.config import ExportConfig, PlainOptions
from export.pipeline import export_model
from export.plain.explain import explained
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import read_manifest
from recsys.errors import ExportError
from tests.export.plain.models import DIM, FIELDS, NUM_ITEMS, Towers, history, ids

_FACTORY = "tests.export.plain.towers:make"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as Lightning saves it."""
    return _saved(Towers(), tmp_path / "towers.ckpt")


def _saved(model: nn.Module, path: Path) -> Path:
    state = {f"model.{name}": one for name, one in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer_states": [{}]}, path)
    return path


@pytest.mark.parametrize(
    "options", [[], ["--dense", "users", "--outputs", "score", "--padding", "history=left"]]
)
def test_a_checkpoint_is_exported_and_a_delta_changes_its_rows(
    checkpoint: Path, tmp_path: Path, options: list[str]
) -> None:
    torch.manual_seed(0)
    model, artifact, delta = Towers(), tmp_path / "a", tmp_path / "d.delta"
    _saved(model, checkpoint)
    assert main([str(checkpoint), "--factory", _FACTORY, "--out", str(artifact), *options]) == 0
    with torch.no_grad():
        model.items.weight[3] += 5.0
    new = _saved(model, tmp_path / "new.ckpt")
    command = [str(checkpoint), str(new), "--delta", "--factory", _FACTORY, "--artifact", str(artifact)]
    assert main([*command, "--out", str(delta), "--json"]) == 0
    loaded = load_artifact(artifact)
    names = [use.name for use in loaded.signature.sparse]
    bags = {"user": [4], "item": [3], "history": [1, 2]}
    price = torch.ones(1, 1)

    def score() -> Tensor:
        lengths = torch.tensor([len(bags[name]) for name in names])
        return loaded.forward(price, lengths, torch.tensor([one for name in names for one in bags[name]]))[
            "score"
        ]

    before = score()
    apply(prepare(loaded.rows, delta))
    with torch.no_grad():
        batch = {"user": torch.tensor([4]), "item": torch.tensor([3]), "price": price[0]}
        expected = model.eval()({**batch, "history": torch.tensor([[0, 0, 0, 0, 1, 2]])})["score"]
    torch.testing.assert_close(score(), expected, rtol=0.05, atol=0.1)
    assert not torch.allclose(before, expected, rtol=0.5, atol=1.0)


def test_explanations_write_nothing(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["--explain", _FACTORY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"]["history"] == "up to 6 IDs, padded on the left with 0"
    assert [one["name"] for one in found["tables"] if not one["stored"]] == ["positions.weight"]
    assert main(["--explain", str(checkpoint), "--factory", _FACTORY]) == 0
    assert "nothing stands in the way" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_options_decide_what_is_a_table_and_what_is_padded(tmp_path: Path) -> None:
    options = PlainOptions(
        inputs={
            "user": ids(FIELDS[0]).squeeze(1),
            "item": ids(NUM_ITEMS).squeeze(1),
            "history": history("left"),
            "price": torch.rand(16),
        },
        dense=("users",),
        padding={"history": "none"},
    )
    export_model(Towers(), tmp_path / "a", ExportConfig(plain=options))
    manifest = read_manifest(tmp_path / "a")
    assert [info.table.name for info in manifest.tables] == [f"sequences_{DIM}.items"]
    assert {use.name: use.num_ids for use in manifest.signature.sparse} == {
        "user": 1,
        "item": 1,
        "history": 6,
    }
    assert manifest.options["plain"] == {"dense": ["users"], "padding": {"history": "none"}}


class Single(nn.Module):
    """One lookup, by a function."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self.table = nn.Embedding(20, DIM, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).sum(dim=-1)


class Matrix(Single):
    """Scores of all pairs of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) @ self.table(x).T


class Random(Single):
    """Numbers by chance."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.table(x), 0.5).sum(dim=-1)


class Deciding(Single):
    """Decides by what a batch holds."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        return rows.sum(dim=-1) if bool((x > 3).any()) else rows.mean(dim=-1)


class Even(Single):
    """Takes an even number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).view(2, -1, DIM).sum(dim=-1).flatten()


class Foreign(Single):
    """Calls an operator that no artifact may call."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.prims.sin(self.table(x).sum(dim=-1))
        return found


class DecidingInPart(Deciding):
    """Does what torch.fx cannot follow; its part does what torch.export cannot either."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Deciding()

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        return torch.vmap(torch.dot)(rows, rows) + self.part(x)


def test_a_refusal_names_one_place() -> None:
    said = explained(DecidingInPart(), ExportConfig(plain=PlainOptions(inputs=torch.arange(8)))).problem
    assert "in DecidingInPart.forward: " in said
    assert (said.count(" At "), said.count(".py:"), "root" in said) == (1, 1, False)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (Single(), None, r"expected a function in tests\..*: def example_inputs\(\): return"),
        (Single(), {"y": 3}, r"inputs: got dict for Single.forward\(x\), expected tensors"),
        (Single(max_norm=1.0), torch.arange(8), r"'table.weight': got max_norm at .*test_command.py:\d+"),
        (
            Single(),
            torch.rand(8, 3),
            r"inputs: Single.forward failed on the example inputs \(x \[8, 3\] float32\).* At "
            r"\S*test_command.py:\d+ in Single.forward, layer 'table' .*fails in plain PyTorch too",
        ),
        (Random(), torch.arange(8), r"draws random numbers .*test_command.py:\d+ in Random.forward"),
        (Matrix(), torch.arange(8), "--submodule"),
        (Deciding(), torch.arange(8), r"control flow.*At .*test_command.py:\d+ in Deciding.forward"),
        (
            Even(),
            torch.arange(8),
            r"Even cannot be followed: RuntimeError: shape .*test_command.py:\d+ in .*view",
        ),
        (Foreign(), torch.arange(8), r"the graph calls \['prims::sin'\]"),
    ],
    ids=[
        "no example",
        "no tensors",
        "max_norm",
        "no IDs",
        "random numbers",
        "pairs of a batch",
        "decisions",
        "even rows",
        "foreign operators",
    ],
)
def test_what_cannot_be_exported_is_said(
    tmp_path: Path, model: nn.Module, inputs: object, message: str
) -> None:
    config = ExportConfig(plain=PlainOptions(inputs=inputs))
    with pytest.raises(ExportError, match=message):
        export_model(model, tmp_path / "a", config)
    assert not (tmp_path / "a").exists()
    assert re.search(message, explained(model, config).problem)


class Labelled(nn.Module):
    """A label that only comes back, and an argument that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, DIM)

    def forward(self, x: Tensor, label: Tensor, weight: Tensor) -> dict[str, Tensor]:
        del weight
        return {"score": self.table(x).sum(dim=-1), "label": label}


def test_inputs_that_no_kept_output_needs_are_left_out(tmp_path: Path) -> None:
    options = PlainOptions(inputs=(torch.arange(8), torch.arange(8) % 2, torch.rand(8)))
    export_model(Labelled(), tmp_path / "a", ExportConfig(plain=options, outputs=("score",)))
    signature = read_manifest(tmp_path / "a").signature
    assert [use.name for use in signature.sparse] == ["x"]
    assert not signature.dense
    with pytest.raises(ExportError, match=r"outputs: got 'scores', expected some of score, label"):
        export_model(Labelled(), tmp_path / "b", ExportConfig(plain=options, outputs=("scores",)))


def test_longer_histories_count_by_their_last_items(tmp_path: Path) -> None:
    model = Towers().eval()
    batch = {
        "user": ids(FIELDS[0]).squeeze(1),
        "item": ids(NUM_ITEMS).squeeze(1),
        "history": history("right"),
        "price": torch.rand(16),
    }
    export_model(model, tmp_path / "a", ExportConfig(plain=PlainOptions(inputs=batch)))
    artifact = load_artifact(tmp_path / "a")
    names = [use.name for use in artifact.signature.sparse]
    bags = {"user": [4], "item": [5], "history": [1, 2, 3, 4, 5, 6, 7, 8]}
    price = torch.ones(1, 1)

    def score(given: dict[str, list[int]]) -> Tensor:
        lengths = torch.tensor([len(given[name]) for name in names])
        values = torch.tensor([one for name in names for one in given[name]])
        return artifact.forward(price, lengths, values)["score"]

    assert torch.equal(score(bags), score({**bags, "history": [3, 4, 5, 6, 7, 8]}))
    assert not torch.equal(score(bags), score({**bags, "history": [1, 2, 3, 4, 5, 6]}))
