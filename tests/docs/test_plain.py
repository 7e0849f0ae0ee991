"""The worked examples of the page for those who come from plain PyTorch: those whose package is installed."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.cli import main
from recsys.artifact.load import load_artifact
from tests.docs.pages import ROOT, blocks

_BLOCKS = list(blocks(ROOT / "docs" / "export" / "plain.md"))
_SOURCES = {
    found[1]: block.text
    for block in _BLOCKS
    if block.language == "python" and (found := re.match(r"# (\w+)\.py\n", block.text))
}
_PACKAGES = {"ctr": "deepctr_torch", "fuxi": "fuxictr", "bole": "recbole"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the modules of the page, in which commands run."""
    for name, source in _SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in _SOURCES:
        sys.modules.pop(name, None)


def _commands(module: str) -> list[list[str]]:
    """Return the page's exports of a module, without the program."""
    lines = [line.partition("#")[0] for block in _BLOCKS for line in block.text.splitlines()]
    return [
        line.split()[1:] for line in lines if line.startswith("recsys-export") and f"{module}:make" in line
    ]


def _exported(module: str, folder: Path, arguments: list[str]) -> Any:
    """Export by a command of the page; return the loaded artifact."""
    found = importlib.import_module(module)
    torch.manual_seed(0)
    model = found.make().eval()
    for weight in model.parameters():  # as training leaves them
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    torch.save(model.state_dict(), folder / arguments[0])
    assert main([*arguments, "--out", str(folder / "a")]) == 0
    return load_artifact(folder / "a")


def test_sasrec_is_explained_and_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained, exported = _commands("sasrec")
    assert main(explained) == 0
    assert "up to 6 IDs, padded on the left with 0" in capsys.readouterr().out
    artifact = _exported("sasrec", folder, exported)
    assert {use.name for use in artifact.signature.sparse} == {"log_seqs", "item_indices"}


@pytest.mark.parametrize("module", list(_PACKAGES))
@pytest.mark.filterwarnings("ignore")
def test_models_of_packages_are_exported(module: str, folder: Path) -> None:
    pytest.importorskip(_PACKAGES[module])
    if module == "bole" and not hasattr(np, "float_"):
        pytest.skip("RecBole 1.2.1 wants NumPy 1")
    arguments = (
        next(words for words in _commands(module) if words[0].endswith(".pt")) if module != "fuxi" else []
    )
    artifact = _exported(module, folder, arguments or ["model.pt", "--factory", "fuxi:make"])
    if module == "ctr":
        (request,) = (json.loads(block.text) for block in _BLOCKS if block.language == "json")
        assert {use.name for use in artifact.signature.sparse} == {*request["sparse"]}
        assert {one.name for one in artifact.signature.dense} == {*request["dense"]}
