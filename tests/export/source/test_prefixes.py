"""Names in a state dict: wrappers' prefixes are taken off where the model does not have them, and never by guess."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.source.load import Source, load_model
from recsys.errors import CheckpointError
from tests.support.export_models import dlrm
from tests.support.factories import HoldsModule, Shallow

DLRM = "tests.support.factories:make_dlrm"
TABLE = "sparse_arch.embedding_bag_collection.embedding_bags.t0.weight"


def _loads(state: dict[str, Tensor], factory: str, path: Path) -> dict[str, Tensor]:
    torch.save(state, path)
    return load_model(Source(path=path, factory=factory)).state_dict()


def test_a_submodule_called_module_keeps_its_name(tmp_path: Path) -> None:
    state = HoldsModule().state_dict()
    assert "module.weight" in state
    found = _loads(state, "tests.support.factories:HoldsModule", tmp_path / "s.pt")
    assert list(found) == list(state)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("prefix", ["module.", "_dmp_wrapped_module.module."])
def test_names_that_collide_without_prefixes_are_an_error(tmp_path: Path, prefix: str) -> None:
    state = Shallow().state_dict()
    doubled = {**state, prefix + "gain": torch.zeros(2)}
    with pytest.raises(
        CheckpointError, match="checkpoint: gain stand there more than once, but for prefixes"
    ):
        _loads(doubled, "tests.support.factories:Shallow", tmp_path / "s.pt")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [TABLE, "over_arch.model.1.bias"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_tensors_of_another_dtype_are_named(
    tmp_path: Path, name: str, dtype: torch.dtype, prefix: str
) -> None:
    state = {
        prefix + key: tensor.to(dtype) if key == name else tensor
        for key, tensor in dlrm().state_dict().items()
    }
    with pytest.raises(CheckpointError, match=f"checkpoint: '{name}' got {dtype}, expected torch.float32"):
        _loads(state, DLRM, tmp_path / "s.pt")
