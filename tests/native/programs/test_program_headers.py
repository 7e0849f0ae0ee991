"""Every field of a program's header set to wrong values: an error that names the part, or the same answers.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.lower.part import text_and_weights
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramPart
from recsys.errors import ManifestError
from tests.native.programs.test_programs import metadata_of
from tests.recsys.artifact.damage import Json, resize_part, same
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels
PART = "ranking-program.safetensors"
MISSING = object()
#: In place of any field's value.
WRONG: list[Any] = [
    MISSING, None, True, -1, 0, 7, 1.5, 2**31, 2**62, 2**63, 2**64, -(2**63), "", "x", [], [-1], [2**62], ["x"], {},
    {"x": 1}, [[]],
]  # fmt: skip
Path_ = tuple[str | int, ...]


class EveryField(nn.Module):
    """Has steps of all kinds, with constants of all kinds, in its ranking form."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 8, ["user", "item"])])
        self.odd, self.shared = nn.Linear(8, 8), nn.Linear(24, 8)
        self.over = nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        user, item = self.tables(features).values().split(8, dim=1)
        # The weight of a layer within what torch computes.
        odd = torch.digamma(torch.nn.functional.linear(torch.erfinv(torch.tanh(item)), self.scale.diag()) + 3)
        both = self.shared(torch.cat([user, item, user + item], dim=1)) * self.scale
        score: Tensor = self.over(both + odd + torch.arange(8.0))
        return score


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An artifact, its ranking program, and what that answers."""

    path: Path
    part: bytes
    rows: Tensor
    inputs: list[Tensor]
    expected: dict[str, Tensor]


def _answers(loaded: LoadedArtifact) -> tuple[list[Tensor], dict[str, Tensor]]:
    signature = loaded.signature
    contexts, rows = batch_of(signature, 2, seed=1), batch_of(signature, 5, seed=2)
    inputs = ranking_batch(signature, contexts, rows, torch.tensor([0, 1, 1, 0, 1])).inputs()
    return inputs, loaded.forward_ranking(*inputs)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("headers") / "a"
    export_model(EveryField().eval(), path, ExportConfig(context=("user",)))
    loaded = load_artifact(path)
    inputs, expected = _answers(loaded)
    part = (path / PART).read_bytes()
    return Exported(path=path, part=part, rows=loaded.rows.ranks[0].rows, inputs=inputs, expected=expected)


def _document(part: bytes) -> Json:
    """Return the header, with the metadata as data."""
    header = metadata_of(part)
    return {**header, "__metadata__": {"recsys": json.loads(header["__metadata__"]["recsys"])}}


def _written(document: Json, part: bytes) -> bytes:
    (length,) = struct.unpack_from("<Q", part)
    held = document.get("__metadata__")
    if isinstance(held, dict) and "recsys" in held and not isinstance(held["recsys"], str):
        document = {**document, "__metadata__": {"recsys": json.dumps(held["recsys"])}}
    text = json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text + part[8 + length :]


def _paths(document: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all fields; of equal kinds of items in a list the first one's."""
    if at:
        yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, (*at, key))
    elif isinstance(document, list):
        seen = set()
        for i, item in enumerate(document):
            kind = (item.get("kind"), *sorted(item)) if isinstance(item, dict) else type(item).__name__
            if kind not in seen:
                seen.add(kind)
                yield from _paths(item, (*at, i))


def _with(document: Json, path: Path_, value: Any) -> Json:
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return changed


def test_the_program_has_every_kind_of_field(exported: Exported) -> None:
    about = _document(exported.part)["__metadata__"]["recsys"]
    assert {step["kind"] for step in about["steps"]} == {"plan", "gather", "region"}
    constants = [one for step in about["steps"] for one in step.get("constants", [])]
    assert {one["kind"] for one in constants} == {"rows", "tensor", "weight", "layer"}
    assert any("columns" in one for one in constants)
    assert any(step.get("weights") for step in about["steps"])
    assert about["checks"]
    assert about["dense"]


def test_wrong_fields_are_errors_that_name_the_part_or_change_nothing(exported: Exported) -> None:
    document = _document(exported.part)
    paths = list(_paths(document))
    assert len(paths) > 100
    found = {"refused": 0, "refused by a call": 0, "harmless": 0}
    texts: dict[str, Path_] = {}
    others: list[tuple[Path_, Any]] = []
    for path in paths:
        for value in WRONG:
            part = _written(_with(document, path, value), exported.part)
            try:
                call = ProgramPart(PART, part).bind(exported.rows, {}, "float32")
            except ManifestError as error:
                texts[str(error)] = path
                found["refused"] += 1
                continue
            try:
                answers = call(*exported.inputs)
            except (RuntimeError, ValueError):
                found["refused by a call"] += 1
                continue
            if same(answers, exported.expected):
                found["harmless"] += 1
            else:
                others.append((path, value))
    assert found["refused"] > 100 * found["harmless"]
    nameless = {text: path for text, path in texts.items() if f"part '{PART}': not readable" not in text}
    assert not nameless
    for path, value in others:
        # What is a program of another model is noticed by the answers that were stored.
        (exported.path / PART).write_bytes(_written(_with(document, path, value), exported.part))
        resize_part(exported.path, PART)
        answers = _answers(load_artifact(exported.path))[1]  # TorchScript's
        torch.testing.assert_close(answers, exported.expected, msg=f"{path} = {value}")


def _move(header: Json, by: int) -> None:
    begin, end = header["plans.0"]["data_offsets"]
    header["plans.0"]["data_offsets"] = [begin + by, end + by]


def test_tensors_share_no_bytes_and_leave_none_out(exported: Exported) -> None:
    def refused(part: bytes, text: str) -> None:
        with pytest.raises(ManifestError, match=rf"part '{PART}': not readable .*operators\.tensors{text}"):
            ProgramPart(PART, part)

    header = metadata_of(exported.part)
    numbers = header["plans.0"]["data_offsets"]
    same_bytes = {**header, "more": header["plans.0"]}
    refused(_written(same_bytes, exported.part), ".more.data_offsets: got .* as the first', expected")
    for other in ("regions.3", "weights.model.over.bias"):
        at = header[other]["data_offsets"][0]
        _move(header, at + 8 - numbers[0])
        refused(_written(header, exported.part), r"\..*data_offsets: got ")
        header["plans.0"]["data_offsets"] = numbers
    refused(exported.part + bytes(8), ": got 8 bytes of no tensor")


def test_the_reader_of_deltas_refuses_wrong_fields_too(exported: Exported) -> None:
    document = _document(exported.part)
    num_refused = 0
    for path in _paths(document):
        for value in WRONG:
            part = _written(_with(document, path, value), exported.part)
            # Another error would end the test.
            with suppress(ManifestError):
                text_and_weights(part)
                continue
            num_refused += 1
    assert num_refused > 1000
