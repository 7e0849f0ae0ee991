"""Names in a state dict: wrappers' prefixes are taken off where the model does not have them, and never by guess."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.source.load import Source, load_model
from recsys.errors import CheckpointError
from tests.support.models.factories import HoldsModule, Shallow


def _loads(state: dict[str, Tensor], factory: str, path: Path) -> dict[str, Tensor]:
    torch.save(state, path)
    return load_model(Source(path=path, factory=factory)).state_dict()


def test_a_submodule_called_module_keeps_its_name(tmp_path: Path) -> None:
    state = HoldsModule().state_dict()
    assert "module.weight" in state
    found = _loads(state, "tests.support.models.factories:HoldsModule", tmp_path / "s.pt")
    assert list(found) == list(state)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("prefix", ["module.", "_dmp_wrapped_module.module."])
def test_names_that_collide_without_prefixes_are_an_error(tmp_path: Path, prefix: str) -> None:
    state = Shallow().state_dict()
    doubled = {**state, prefix + "gain": torch.zeros(2)}
    with pytest.raises(
        CheckpointError, match="checkpoint: gain stand there more than once, but for prefixes"
    ):
        _loads(doubled, "tests.support.models.factories:Shallow", tmp_path / "s.pt")
