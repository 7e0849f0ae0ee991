"""Histories that grow: a context cache computes what is new, with the scores of a whole computation.

Shape letters: B rows, S longest history.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.sequences import SelfAttentive
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramPart
from recsys.errors import ManifestError
from tests.export.lower.test_growth import CAUSAL, Attentive, mean_state
from tests.native.programs.test_programs import metadata_of
from tests.recsys.artifact.damage import resize_part
from tests.recsys.models.test_sequential import sequential_model
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

_NUM_ITEMS = 100
_MAX_BYTES = 1 << 22


def _exported(model: nn.Module, path: Path, **options: object) -> Path:
    export_model(model.eval(), path, ExportConfig(context=("history",), **options))  # type: ignore[arg-type]
    return path


def _opened(path: Path, max_bytes: int = 0) -> LoadedArtifact:
    loaded = load_artifact(path)
    if max_bytes:
        assert loaded.cache_contexts(max_bytes) == ""
    return loaded


def _scores(model: LoadedArtifact, histories: Sequence[Sequence[int]], *, dense: bool = False) -> Tensor:
    """Return the scores of three items for each history."""
    num_rows = 3 * len(histories)
    items = torch.arange(num_rows) * 7 % _NUM_ITEMS
    inputs = [
        *([torch.linspace(0, 1, num_rows).unsqueeze(1)] if dense else []),
        torch.tensor([len(one) for one in histories]),
        torch.tensor([item for one in histories for item in one], dtype=torch.int64),
        torch.ones(num_rows, dtype=torch.int64),
        items,
        torch.arange(num_rows) // 3,
    ]
    with torch.inference_mode():
        (found,) = model.forward_ranking(*inputs).values()
    return found


def _history(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, _NUM_ITEMS, (count,), generator=generator).tolist()


@pytest.fixture(scope="module")
def sasrec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return _exported(
        SelfAttentive(recsys, _NUM_ITEMS), tmp_path_factory.mktemp("growing") / "a", dense_widths={"dense": 1}
    )


@pytest.fixture(scope="module")
def attentive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return _exported(Attentive(CAUSAL, mean_state), tmp_path_factory.mktemp("growing") / "a")


def test_appended_items_have_the_scores_of_the_whole(sasrec: Path) -> None:
    whole, grown = _opened(sasrec), _opened(sasrec, _MAX_BYTES)
    history = _history(1, 49)
    lengths = [1, 2, 3, 10, 11, 12, 40, 41, 48, 49]
    for length in lengths:
        torch.testing.assert_close(
            _scores(grown, [history[:length]], dense=True),
            _scores(whole, [history[:length]], dense=True),
            rtol=0,
            atol=0,
        )
    counts = grown.contexts.counts()
    assert counts["misses"] == len(lengths)
    assert counts["grown"] == len(lengths) - 1


def test_histories_of_a_batch_grow_each_from_its_own_state(attentive: Path) -> None:
    whole, grown = _opened(attentive), _opened(attentive, _MAX_BYTES)
    before = [_history(1, 2), _history(2, 3), _history(3, 1)]
    after = [[*before[0], 5], [*before[1][:1], 6, 7], _history(4, 4), [*before[2], 8, 9]]
    _scores(grown, before)
    torch.testing.assert_close(_scores(grown, after), _scores(whole, after), rtol=0, atol=0)
    # The second differs in its second item, and the third is another one.
    assert grown.contexts.counts()["grown"] == 2


class Variant(nn.Module):
    """A history, of whose rows and those of its IDs ``user_of`` makes ``[B, D]``, and an item."""

    def __init__(self, user_of: Callable[[Variant, recsys.JaggedTensor], Tensor]) -> None:
        super().__init__()
        table = recsys.EmbeddingConfig(
            name="items", embedding_dim=8, num_embeddings=_NUM_ITEMS, feature_names=["history", "item"]
        )
        self.items = recsys.EmbeddingCollection(tables=[table])
        self.user_of = user_of
        self.qkv, self.over = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("causal", CAUSAL)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        user = self.user_of(self, found["history"])
        return (user * found["item"].to_padded_dense(1).squeeze(1)).sum(dim=1)


def _parts(model: Variant, x: Tensor, history: recsys.JaggedTensor) -> tuple[Tensor, Tensor, Tensor]:
    there = torch.arange(len(CAUSAL)).unsqueeze(0) < history.lengths().unsqueeze(1)
    q, k, v = model.qkv(x).split(8, dim=2)
    return q @ k.transpose(1, 2), v, model.causal & there.unsqueeze(1)


def _multiplied(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    scores, v, mask = _parts(model, history.to_padded_dense(len(CAUSAL)), history)
    states = torch.relu(model.over((torch.nn.functional.silu(scores) * mask) @ v))
    return (states * mask[:, -1].unsqueeze(2)).sum(dim=1)


def _with_the_sum(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    x = history.to_padded_dense(len(CAUSAL))
    scores, v, mask = _parts(model, x + x.sum(dim=1, keepdim=True), history)
    return ((scores * mask) @ v).sum(dim=1)


def _with_the_bag(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    each = torch.tanh(model.over(history.values()))
    bag = torch.segment_reduce(each, "sum", lengths=history.lengths(), initial=0.0)
    scores, v, mask = _parts(model, history.to_padded_dense(len(CAUSAL)) + bag.unsqueeze(1), history)
    return ((scores * mask) @ v).sum(dim=1)


def _last(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    scores, v, mask = _parts(model, history.to_padded_dense(len(CAUSAL)), history)
    states = torch.relu(model.over((scores * mask) @ v))
    at = (history.lengths() - 1).clamp(0, len(CAUSAL) - 1)
    return states.gather(1, at.view(-1, 1, 1).expand(-1, 1, 8)).squeeze(1)


def _scaled_by_the_count(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    x = history.to_padded_dense(len(CAUSAL)) * history.lengths().float().view(-1, 1, 1)
    scores, v, mask = _parts(model, x, history)
    states = torch.relu(model.over((scores * mask) @ v))
    return (states * mask[:, -1].unsqueeze(2)).sum(dim=1)


def _whole_scores(model: Variant, history: recsys.JaggedTensor) -> Tensor:
    scores, v, mask = _parts(model, history.to_padded_dense(len(CAUSAL)), history)
    return (scores * mask).sum(dim=(1, 2)).unsqueeze(1) + ((scores * mask) @ v).sum(dim=1)


@pytest.mark.parametrize(
    "user_of", [_multiplied, _with_the_sum, _with_the_bag, _last, _scaled_by_the_count, _whole_scores]
)
def test_whatever_a_model_makes_of_a_history_grows_to_the_same(
    user_of: Callable[[Variant, recsys.JaggedTensor], Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(1)
    path = _exported(Variant(user_of), tmp_path / "a")
    whole, grown = _opened(path), _opened(path, _MAX_BYTES)
    for seed in range(4):
        history = _history(seed, 5)
        for length in range(1, 6):
            torch.testing.assert_close(
                _scores(grown, [history[:length]]), _scores(whole, [history[:length]]), rtol=0, atol=0
            )


@pytest.mark.parametrize(
    ("encoder", "objective"), [("sasrec", "click"), ("sasrec", "next-item"), ("hstu", "next-item")]
)
def test_trained_models_grow_until_a_history_is_full(encoder: str, objective: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    export_model(sequential_model(encoder, objective), path, ExportConfig(context=("seen",)))
    whole, grown = _opened(path), _opened(path, _MAX_BYTES)
    history = [item % 40 for item in _history(3, 9)]
    for length in range(1, 10):  # five items are a full history
        lengths, ids = torch.tensor([length]), torch.tensor(history[:length])
        inputs = [lengths, ids, torch.ones(2, dtype=torch.int64), torch.tensor([7, 9]), torch.zeros(2).long()]
        with torch.inference_mode():
            expected, found = ([*one.forward_ranking(*inputs).values()] for one in (whole, grown))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert grown.contexts.counts()["grown"] == 3


class TwoHistories(nn.Module):
    """Two histories of one longest length, each read by causal attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        features = ["clicks", "item", "orders"]
        table = recsys.EmbeddingConfig(
            name="items", embedding_dim=8, num_embeddings=_NUM_ITEMS, feature_names=features
        )
        self.items = recsys.EmbeddingCollection(tables=[table])
        self.clicks, self.orders = Attentive(CAUSAL, mean_state), Attentive(CAUSAL, mean_state)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        size, score = len(CAUSAL), torch.zeros(1)
        for layer, name in ((self.clicks, "clicks"), (self.orders, "orders")):
            x = found[name].to_padded_dense(size)
            there = torch.arange(size).unsqueeze(0) < found[name].lengths().unsqueeze(1)
            q, k, v = layer.qkv(x).split(8, dim=2)
            mask = (layer.mask & there.unsqueeze(1)) | torch.eye(size, dtype=torch.bool)
            scores = (q @ k.transpose(1, 2)).masked_fill(~mask, -torch.inf)
            state = mean_state(torch.softmax(scores, dim=2) @ v, there)
            score = score + (state * found["item"].to_padded_dense(1).squeeze(1)).sum(dim=1)
        return score


def test_either_of_two_histories_grows_to_the_same(tmp_path: Path) -> None:
    torch.manual_seed(2)
    path = tmp_path / "a"
    export_model(TwoHistories().eval(), path, ExportConfig(context=("clicks", "orders")))
    whole, grown = _opened(path), _opened(path, _MAX_BYTES)
    names = [one.name for one in whole.signature.sparse if one.name != "item"]
    for clicks, orders in ((1, 4), (2, 4), (3, 4), (3, 5), (4, 5), (4, 1), (5, 1), (0, 3), (1, 3), (1, 4)):
        bags = {"clicks": _history(1, 5)[:clicks], "orders": _history(2, 5)[:orders]}
        inputs = [
            torch.tensor([len(bags[name]) for name in names]),
            torch.tensor([item for name in names for item in bags[name]], dtype=torch.int64),
            torch.ones(2, dtype=torch.int64),
            torch.tensor([7, 9]),
            torch.zeros(2, dtype=torch.int64),
        ]
        with torch.inference_mode():
            expected, found = ([*one.forward_ranking(*inputs).values()] for one in (whole, grown))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert grown.contexts.counts()["grown"] > 0


def test_a_history_that_is_full_or_shorter_is_computed_from_the_beginning(attentive: Path) -> None:
    whole, grown = _opened(attentive), _opened(attentive, _MAX_BYTES)
    history = _history(5, 9)
    for length in (5, 3, 6, 7, 9, 0):
        torch.testing.assert_close(
            _scores(grown, [history[:length]]), _scores(whole, [history[:length]]), rtol=0, atol=0
        )
    assert grown.contexts.counts()["grown"] == 0


def test_states_take_no_more_than_half_of_the_bytes(sasrec: Path) -> None:
    grown = _opened(sasrec, _MAX_BYTES)
    for seed in range(200):
        _scores(grown, [_history(seed, 40)], dense=True)
    counts = grown.contexts.counts()
    assert counts["bytes"] <= _MAX_BYTES
    # The values of all, and as many states as have room.
    assert 200 < counts["entries"] < 400
    assert counts["evictions"] > 0


def _with_growing(part: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a program whose first plan goes on in another way."""
    header = metadata_of(part)
    about = json.loads(header["__metadata__"]["recsys"])
    change(next(step["growing"] for step in about["steps"] if "growing" in step))
    header["__metadata__"]["recsys"] = json.dumps(about)
    text = json.dumps(header).encode()
    (length,) = struct.unpack_from("<Q", part)
    return struct.pack("<Q", len(text)) + text + part[8 + length :]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0), ("size", 51), ("size", 1 << 40), ("every", 0), ("every", -1), ("feature", -1),
        ("buffers", [[9999, 0]]), ("buffers", [[0, 64]]), ("buffers", [[14, 191]]), ("buffers", [14]),
        ("steps", [[1, 0]]), ("steps", [[9999, 0]]), ("steps", [[14, 8]]), ("steps", [[10, 4]]), ("steps", [[10]]),
        ("steps", "all"),
    ],
)  # fmt: skip
def test_a_plan_that_goes_on_wrongly_is_refused(sasrec: Path, field: str, value: object) -> None:
    part = (sasrec / "ranking-program.safetensors").read_bytes()
    rows = load_artifact(sasrec).rows.ranks[0].rows
    wrong = _with_growing(part, lambda growing: growing.update({field: value}))
    with pytest.raises(ManifestError, match="growing"):
        ProgramPart("ranking-program.safetensors", wrong).bind(rows, {}, "float32")


def test_a_feature_that_does_not_grow_there_is_computed_from_the_beginning(
    sasrec: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "a"
    shutil.copytree(sasrec, copied)
    name = "ranking-program.safetensors"
    (copied / name).write_bytes(
        _with_growing((copied / name).read_bytes(), lambda growing: growing.update(feature=3))
    )
    resize_part(copied, name)
    grown, whole = _opened(copied, _MAX_BYTES), _opened(sasrec)
    for length in (3, 4):
        found = _scores(grown, [_history(1, length)], dense=True)
        torch.testing.assert_close(found, _scores(whole, [_history(1, length)], dense=True), rtol=0, atol=0)
    assert grown.contexts.counts()["grown"] == 0
