"""TorchRec's own models, as they are, from a state dict to answers of a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.torchrec_models import TARGETS, main, run
from tests.peer.torchrec_peer import torchrec

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]
assert torchrec

NAMES = (
    "DLRM",
    "DLRM_DCN",
    "DLRM_Projection",
    "DLRMTrain",
    "DLRMWrapper",
    "SimpleDeepFMNN",
    "SimpleDeepFMNNWrapper",
    "two towers",
    "BERT4Rec",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_torchrecs_int8(name: str, tmp_path: Path) -> None:
    row = run(name, tmp_path, is_served=False)
    assert not row.error
    assert row.glue == 0
    assert row.is_bit_equal == dict.fromkeys(TARGETS, True)
    assert all(0 < found < 0.02 for found in row.float_difference.values())


def test_rows_that_attend_to_each_other_are_refused(tmp_path: Path) -> None:
    row = run("DLRM_Transformer", tmp_path, is_served=False)
    assert row.is_refused_rightly
    assert "a row must not depend on the others of its batch" in row.error


def test_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["DLRM", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["is_bit_equal"] == dict.fromkeys(TARGETS, True)
    assert max(row["int8_difference"].values()) < 1e-6
