"""The artifacts that cases serve, made by the exporter, and what their models say when nobody serves them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.base.hashing import hash_text
from recsys.configs import DataType
from recsys.inputs.signature import IdPolicy, Signature
from recsys.managed import (
    HashZchManagedCollisionModule,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from tests.support.serve.messages.cases import Sample, answer, random_sample
from tests.support.serve.models import SmallModel

#: The inputs that ranking requests of the small model may give once at no further cost.
CONTEXT = ("context", "user", "tags")


@dataclass(frozen=True)
class Exported:
    """An artifact, and the oracle: the same artifact loaded here."""

    path: Path

    @cached_property
    def model(self) -> LoadedArtifact:
        return load_artifact(self.path)

    @property
    def signature(self) -> Signature:
        return self.model.signature

    def sample(self, num_rows: int, seed: int = 0, max_ids: int = 4) -> Sample:
        """A random request."""
        return random_sample(self.signature, num_rows, np.random.default_rng(seed), max_ids)

    def answer(self, sample: Sample) -> dict[str, np.ndarray]:
        """What the model says of it."""
        return answer(self.model, sample)


def export_small(path: Path, seed: int = 0, context: tuple[str, ...] = CONTEXT) -> Exported:
    """Every kind of input that the wire knows, ``item`` hashed; models of other seeds give other answers."""
    config = ExportConfig(
        name="small",
        targets=(("cpu",), ("cpu", "cpu")),
        dense_widths={"context": 3, "price": 1},
        table_id_policies={"catalog": IdPolicy.HASH},
        context=context,
        strings={"item": "xxh64"},
    )
    export_model(SmallModel(seed).eval(), path, config)
    return Exported(path)


class SlowModel(nn.Module):
    """Takes milliseconds a row, so that requests meet in the queue; its score is the row's ID."""

    def __init__(self, width: int = 2048, depth: int = 8) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="ids", embedding_dim=4, num_embeddings=1000, feature_names=["id"])
            ]
        )
        with torch.no_grad():
            self.rows.embedding_bags["ids"].weight.copy_(torch.arange(1000.0).unsqueeze(1).expand(1000, 4))
        self.work = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))
        self._width = width

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        ids = self.rows(features).values()[:, :1]
        nothing = self.work(ids.expand(-1, self._width)).mean(dim=1) * 0.0
        return {"score": ids[:, 0] + nothing}


def export_slow(path: Path, width: int = 2048) -> Exported:
    """A model that takes its time: the more, the wider its layers."""
    torch.manual_seed(0)
    export_model(SlowModel(width).eval(), path, ExportConfig(name="slow"))
    return Exported(path)


class ListModel(nn.Module):
    """Scores the rows of a request against each other: how far each is from their mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.rows = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="ids", embedding_dim=8, num_embeddings=1000, feature_names=["id"])
            ]
        )

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.rows(features).values()
        return {"score": (rows - rows.mean(dim=0)).sum(dim=1)}


def export_list(path: Path) -> Exported:
    """A model whose batch is one request."""
    config = ExportConfig(name="list", data_type=DataType.FP32, batch="request", context=())
    export_model(ListModel().eval(), path, config)
    return Exported(path)


#: The IDs of the candidates of the model that retrieves: neighbours are one number in float32, and most in float64.
RAW_ITEM_IDS = torch.tensor([(-1) ** i * (2**62 + i) for i in range(50)])


class BestModel(nn.Module):
    """Answers users with the IDs of the best candidates, their scores, and whether the best one is good."""

    raw_ids: Tensor
    candidates: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.rows = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=1000, feature_names=["user"])
            ]
        )
        self.register_buffer("raw_ids", RAW_ITEM_IDS)
        self.register_buffer("candidates", torch.randn(len(RAW_ITEM_IDS), 8))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        scores, places = torch.topk(self.rows(features).values() @ self.candidates.T, 4, dim=1)
        return {"ids": self.raw_ids[places], "scores": scores, "good": scores[:, 0] > 0.05}


def export_best(path: Path) -> Exported:
    """A model with outputs of integers, floats and bools."""
    export_model(BestModel().eval(), path, ExportConfig(name="best"))
    return Exported(path)


class InBatchModel(nn.Module):
    """Two towers over the rows of a request: all their logits, the candidates, and each row's vector."""

    candidates: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(17)
        tables = [
            EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=100, feature_names=[name])
            for name in ("user", "item")
        ]
        self.rows = EmbeddingBagCollection(tables=tables)
        self.register_buffer("candidates", torch.randn(6, 4))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        users, items = self.rows(features).values().split([4, 4], dim=1)
        logits = users @ items.T
        return {
            "logits": logits,
            "candidates": self.candidates,
            "best": logits.argmax(dim=1).unsqueeze(0),
            "vector": users,
        }


def export_in_batch(path: Path) -> Exported:
    """A model with outputs ``[B, B]``, ``[6, 4]``, ``[1, B]`` and ``[B, 4]``; a batch is one request."""
    config = ExportConfig(name="in_batch", data_type=DataType.FP32, batch="request")
    export_model(InBatchModel().eval(), path, config)
    return Exported(path)


#: Rows of the tables of the crossing model: an ID ``a`` of the first is looked up as ``2 * a`` in the second.
NUM_CROSSED_ROWS = 100


#: The IDs that each bag of the slots' model must hold.
NUM_SLOTS = 3


class SlotsModel(nn.Module):
    """A sequence of exactly three IDs, beside bags of any size; context inputs in neither."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(17)
        slots = EmbeddingConfig(name="s", embedding_dim=4, num_embeddings=40, feature_names=["slots"])
        user = EmbeddingBagConfig(name="u", embedding_dim=4, num_embeddings=30, feature_names=["user"])
        self.slots = EmbeddingCollection(tables=[slots])
        self.users = EmbeddingBagCollection(tables=[user])
        self.out = nn.Linear((NUM_SLOTS + 1) * 4, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        slots = self.slots(features)["slots"].values().reshape(-1, NUM_SLOTS * 4)
        scores: Tensor = self.out(torch.cat([slots, self.users(features).values()], dim=1))
        return {"score": scores.squeeze(1)}


def export_slots(path: Path) -> Exported:
    """A model that takes no made rows but those whose bags have the sizes of its signature; ``user`` is its context."""
    samples = path.parent / "samples.json"
    slots = [[i, 39 - i, (7 * i) % 40] for i in range(20)]
    samples.write_text(json.dumps({"sparse": {"slots": slots, "user": [[i] for i in range(20)]}}))
    config = ExportConfig(name="slots", samples=samples, context=("user",))
    export_model(SlotsModel().eval(), path, config)
    return Exported(path)


class CrossingModel(nn.Module):
    """Computes IDs of ``id``: for ``twice``, which rejects those that leave it, and for ``hashed``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(14)
        names = ("id", "twice", "hashed")
        tables = [
            EmbeddingBagConfig(
                name=name, embedding_dim=8, num_embeddings=NUM_CROSSED_ROWS, feature_names=[name]
            )
            for name in names
        ]
        self.given = EmbeddingBagCollection(tables=tables[:1])
        self.made = EmbeddingBagCollection(tables=tables[1:])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        ids = features["id"]
        made = KeyedJaggedTensor(
            ["twice", "hashed"],
            torch.cat([ids.values() * 2, ids.values() * 1_000_003]),
            lengths=torch.cat([ids.lengths(), ids.lengths()]),
        )
        rows = torch.cat([self.given(features).values(), self.made(made).values()], dim=1)
        return {"score": rows.sum(dim=1)}


def export_crossing(path: Path) -> Exported:
    """A model that computes IDs. Only the first half of the IDs that it takes stay within their table."""
    samples = path.parent / "samples.json"
    ids = [[i, (7 * i) % (NUM_CROSSED_ROWS // 2)] for i in range(NUM_CROSSED_ROWS // 2)]
    samples.write_text(json.dumps({"sparse": {"id": ids}}))
    config = ExportConfig(
        name="crossing",
        targets=(("cpu",), ("cpu", "cpu")),
        table_id_policies={"hashed": IdPolicy.HASH},
        samples=samples,
    )
    export_model(CrossingModel().eval(), path, config)
    return Exported(path)


@torch.fx.wrap
def refusing(numbers: Tensor) -> Tensor:
    """Return numbers up to 100; raise an error for others."""
    if bool((numbers > 100).any()):
        raise ValueError("secret: a number is too large")
    return numbers


class BrittleModel(nn.Module):
    """Fails on requests with a number above 100."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.tables = EmbeddingBagCollection(
            [EmbeddingBagConfig(name="t", embedding_dim=8, num_embeddings=30, feature_names=["id"])]
        )

    def forward(self, features: KeyedJaggedTensor, price: Tensor) -> dict[str, Tensor]:
        return {"score": (self.tables(features).values() * refusing(price)).sum(dim=1)}


def export_brittle(path: Path) -> Exported:
    """A model that fails on some requests, which no check finds before."""
    config = ExportConfig(name="brittle", dense_widths={"price": 1})
    export_model(BrittleModel().eval(), path, config)
    return Exported(path)


class SideBySideModel(nn.Module):
    """Puts the rows of two features, and the times of a third, side by side, as HSTU does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(16)
        names = ("item", "shop", "user")
        self.tables = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=name, embedding_dim=8, num_embeddings=30, feature_names=[name])
                for name in names
            ]
        )
        self.layer = nn.Linear(17, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.tables(features)
        times = features["time"].values().float().unsqueeze(1) * 0.01
        rows = torch.cat([found["item"].values(), found["shop"].values(), times], dim=1)
        padded = torch.ops.fbgemm.jagged_to_padded_dense(
            torch.relu(self.layer(rows)), [found["item"].offsets()], [6], 0.0
        )
        return {"score": padded.sum(dim=(1, 2)) + found["user"].to_padded_dense(1).sum(dim=(1, 2))}


def export_side_by_side(path: Path) -> Exported:
    """A model whose features must have equal lengths, but one."""
    config = ExportConfig(name="side-by-side")
    export_model(SideBySideModel().eval(), path, config)
    return Exported(path)


#: Rows of each table of the policies' model, and the raw IDs that its last tables know; one is that of a text.
NUM_POLICY_ROWS = 10
KNOWN_TEXT = "known"
KNOWN_IDS = (-(2**63), -7, 0, 10, 2**40, 2**63 - 1, hash_text(KNOWN_TEXT))
#: The table that finds rows by hash; its policy is "mapped".
HASHED = "hashed"
POLICY_TABLES = (*map(str, IdPolicy), HASHED)


def hashed_rows() -> HashZchManagedCollisionModule:
    """The mapping of the table that finds rows by hash."""
    module = HashZchManagedCollisionModule(NUM_POLICY_ROWS, None, 1).train()
    module(torch.tensor(KNOWN_IDS))
    return module.eval()


class PolicyModel(nn.Module):
    """A table for each ID policy, by its name, and one that finds rows by hash.

    The answers are the numbers of the rows that IDs read, from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=name, embedding_dim=4, num_embeddings=NUM_POLICY_ROWS, feature_names=[name]
            )
            for name in POLICY_TABLES
        ]
        rows = EmbeddingBagCollection(tables=tables)
        with torch.no_grad():
            for table in tables:
                numbers = torch.arange(1.0, NUM_POLICY_ROWS + 1).unsqueeze(1)
                rows.embedding_bags[table.name].weight.copy_(numbers.expand(-1, 4))
        known = MCHManagedCollisionModule(NUM_POLICY_ROWS, None, LRU_EvictionPolicy(), 1)
        known.train()(torch.tensor(KNOWN_IDS))
        modules = {str(IdPolicy.MAPPED): known, HASHED: hashed_rows()}
        mapping = ManagedCollisionCollection(modules, tables).eval()
        self.rows = ManagedCollisionEmbeddingBagCollection(rows, mapping, embeddings_only=True)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features)
        return {name: pooled[name][:, 0] for name in POLICY_TABLES}


def export_policies(path: Path) -> Exported:
    """A table for each ID policy; where all IDs read rows, texts are hashed."""
    policies = {str(policy): policy for policy in (IdPolicy.HASH, IdPolicy.ZERO, IdPolicy.FMIX64)}
    hashed = (IdPolicy.HASH, IdPolicy.MAPPED, IdPolicy.FMIX64, HASHED)
    strings = {str(table): "xxh64" for table in hashed}
    config = ExportConfig(name="policies", table_id_policies=policies, strings=strings)
    export_model(PolicyModel().eval(), path, config)
    return Exported(path)
