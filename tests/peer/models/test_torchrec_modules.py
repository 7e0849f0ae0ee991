"""Models that hold TorchRec's own modules are exported as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recsys
from export.cli import main
from export.config import ExportConfig
from export.pipeline import export_model
from export.source.torchrec_modules import patch_torchrec_names, replace_torchrec_modules
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from recsys.managed import HashZchManagedCollisionModule as HashZch
from tests.peer.torchrec_peer import configs, torchrec
from tests.support.helpers import kjt_of

pytestmark = pytest.mark.peer

KeyedJaggedTensor = torchrec.KeyedJaggedTensor
KeyedTensor = torchrec.KeyedTensor
NUM_ROWS = 40


def bags(*features: str, **options: Any) -> Any:
    tables = [
        configs.EmbeddingBagConfig(
            name=f"table_{name}", embedding_dim=8, num_embeddings=NUM_ROWS, feature_names=[name]
        )
        for name in features
    ]
    return torchrec.EmbeddingBagCollection(tables=tables, **options)


def sequences(*features: str, **options: Any) -> Any:
    tables = [
        configs.EmbeddingConfig(
            name=f"table_{name}", embedding_dim=8, num_embeddings=NUM_ROWS, feature_names=[name]
        )
        for name in features
    ]
    return torchrec.EmbeddingCollection(tables=tables, **options)


class Regrouping(nn.Module):
    """Tests, makes and regroups TorchRec's data types."""

    def __init__(self) -> None:
        super().__init__()
        self.user = bags("a", "b")
        self.item = bags("c")
        self.layer = nn.Linear(24, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        assert isinstance(features, KeyedJaggedTensor)
        again = torchrec.KeyedJaggedTensor(
            keys=features.keys(), values=features.values(), lengths=features.lengths()
        )
        found = [self.user(again), self.item(features)]
        assert all(isinstance(one, KeyedTensor) for one in found)
        groups = KeyedTensor.regroup(found, [["c", "a"], ["b"]])
        return self.layer(torch.cat(groups, dim=1))


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ec = sequences("a", "b")

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[valid-type]
        return {name: jt.to_padded_dense(4).sum(dim=1) for name, jt in self.ec(features).items()}


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ebc = bags("a", "b", is_weighted=True)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        return self.ebc(features).values()


class Indices(nn.Module):
    """Reads the IDs that a lookup gives with its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = sequences("a", "b", need_indices=True)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        found = self.ec(features)["b"]
        ids = torchrec.JaggedTensor(found.weights().float(), lengths=found.lengths()).to_padded_dense(4)
        return found.to_padded_dense(4).sum(dim=1) + ids.sum(dim=1, keepdim=True)


class ByPosition(nn.Module):
    """Weights IDs by their position in the row."""

    def __init__(self, of_one: bool) -> None:
        super().__init__()
        from torchrec.modules.feature_processor_ import (
            PositionWeightedModule,
            PositionWeightedModuleCollection,
        )
        from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

        processors = (
            {"a": PositionWeightedModule(5), "b": PositionWeightedModule(6)}
            if of_one
            else PositionWeightedModuleCollection({"a": 5, "b": 6})
        )
        self.fp = FeatureProcessedEmbeddingBagCollection(bags("a", "b", is_weighted=True), processors)
        with torch.no_grad():
            for name, weight in self.fp.named_parameters():
                if "position" in name:
                    weight.uniform_()

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        return self.fp(features).values()


class RegroupingModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from torchrec.modules.regroup import KTRegroupAsDict

        self.first, self.second = bags("a", "b"), bags("c")
        self.regroup = KTRegroupAsDict([["a", "c"], ["b"]], ["x", "y"])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[valid-type]
        return self.regroup([self.first(features), self.second(features)])


def named_in_closures() -> nn.Module:
    """TorchRec's types in locals of a factory, in a closure and as a default."""
    made, joined = torchrec.KeyedJaggedTensor, torchrec.KeyedTensor

    def swapped(features: Any, kind: Any = made) -> Any:
        assert isinstance(features, kind)
        parts = [features["b"], features["a"]]
        return made(
            keys=["a", "b"],
            values=torch.cat([part.values() for part in parts]),
            lengths=torch.cat([part.lengths() for part in parts]),
        )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc = bags("a", "b")
            self.swapped = swapped

        def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
            rows = self.ebc(self.swapped(features, made))
            more = joined(keys=["x"], length_per_key=[16], values=rows.values() * 2)
            found: Tensor = joined.regroup([rows, more], [["a", "x"]])[0]
            return found

    return Model()


class Types:
    KJT = torchrec.KeyedJaggedTensor


class NamedInClasses(nn.Module):
    """TorchRec's types as attributes of a class, of a class beside it, and of the model."""

    KT = torchrec.KeyedTensor

    def __init__(self) -> None:
        super().__init__()
        self.ebc = bags("a", "b")
        self.kind = torchrec.KeyedJaggedTensor

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        assert isinstance(features, Types.KJT)
        made = self.kind(keys=["b", "a"], values=features.values(), lengths=features.lengths())
        rows = self.ebc(made)
        assert isinstance(rows, self.KT)
        found: Tensor = self.KT.regroup([rows], [["b", "a"]])[0]
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "regrouping": Regrouping,
    "sequences": Sequences,
    "weighted": Weighted,
    "indices": Indices,
    "weights of each feature's positions": lambda: ByPosition(of_one=True),
    "weights of positions": lambda: ByPosition(of_one=False),
    "regrouping module": RegroupingModule,
    "names in closures": named_in_closures,
    "names in classes": NamedInClasses,
}


def theirs_of(model: nn.Module, features: Any) -> Any:
    """What TorchRec itself answers."""
    with torch.no_grad():
        return model.eval()(
            torchrec.KeyedJaggedTensor(
                keys=features.keys(),
                values=features.values(),
                lengths=features.lengths(),
                weights=features.weights_or_none(),
            )
        )


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_exported_as_it_is(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make().eval()
    targets = (("cpu",), ("cpu", "cpu"))
    export_model(model, tmp_path / "artifact", ExportConfig(targets=targets, data_type=recsys.DataType.FP32))
    for target in ("cpu", "cpu,cpu"):
        artifact = load_artifact(tmp_path / "artifact", target=target)
        batch = random_batch(artifact.manifest.signature, 33, torch.Generator().manual_seed(1))
        features = recsys.KeyedJaggedTensor(
            [feature.name for feature in artifact.manifest.signature.sparse],
            batch.values,
            weights=batch.weights,
            lengths=batch.lengths,
        )
        expected = theirs_of(model, features)
        expected = expected if isinstance(expected, dict) else {"default": expected}
        found = artifact.forward(*batch.inputs())
        assert list(found) == list(expected)
        for name, want in expected.items():
            torch.testing.assert_close(found[name], want, rtol=1e-5, atol=1e-6)


def test_weights_are_shared_and_the_model_is_not_changed() -> None:
    model = Regrouping()
    before = model.state_dict(keep_vars=True)
    ours = replace_torchrec_modules(model)
    assert type(ours.user) is recsys.EmbeddingBagCollection
    assert type(model.user) is torchrec.EmbeddingBagCollection
    after = ours.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is weight for name, weight in before.items())


def test_a_model_without_torchrec_is_returned_itself() -> None:
    model = nn.Linear(2, 1)
    assert replace_torchrec_modules(model) is model


def test_names_are_put_back() -> None:
    theirs = torchrec.KeyedJaggedTensor
    model = NamedInClasses()
    with patch_torchrec_names(model):
        assert Types.KJT is model.kind is recsys.KeyedJaggedTensor  # type: ignore[comparison-overlap]
        assert torchrec.KeyedJaggedTensor is recsys.KeyedJaggedTensor is KeyedJaggedTensor
        with patch_torchrec_names():
            pass
        assert torchrec.KeyedJaggedTensor is recsys.KeyedJaggedTensor
    assert torchrec.KeyedJaggedTensor is theirs is KeyedJaggedTensor
    assert Types.KJT is model.kind is theirs
    assert recsys.KeyedJaggedTensor is not theirs


def doubled(_: nn.Module, __: Any, found: Any) -> Any:
    return KeyedTensor(found.keys(), found.length_per_key(), found.values() * 2)


def test_hooks_of_a_collection_run() -> None:
    model = Weighted()
    model.ebc = bags("a", "b")
    model.ebc.register_forward_hook(doubled)
    features = kjt_of({"a": [[1], [2, 3]], "b": [[4], []]})
    with patch_torchrec_names():
        found = replace_torchrec_modules(model)(features)
    assert torch.equal(found, theirs_of(model, features))


class Scaled(torchrec.EmbeddingBagCollection):  # type: ignore[misc,name-defined]
    def forward(self, features: Any) -> Any:
        return super().forward(features).values() * 2


def test_a_collection_with_a_forward_of_its_own_is_refused() -> None:
    model = Weighted()
    model.ebc = Scaled(tables=bags("a").embedding_bag_configs())
    with pytest.raises(ExportError, match=r"'ebc': got a Scaled, whose forward is not that of torchrec"):
        replace_torchrec_modules(model)


def make_regrouping() -> nn.Module:
    model = Regrouping()
    # Tables take no memory before the checkpoint's are there.
    assert all(weight.is_meta for weight in model.user.parameters())
    assert not model.layer.weight.is_meta
    return model


def test_state_dict_with_a_factory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Regrouping().eval()
    state = {f"_dmp_wrapped_module.module.{name}": weight for name, weight in model.state_dict().items()}
    torch.save(state, tmp_path / "state.pt")
    factory = f"{__name__}:make_regrouping"
    assert main([str(tmp_path / "state.pt"), "--factory", factory, "--dtype", "fp32"]) == 0
    capsys.readouterr()
    artifact = load_artifact(tmp_path / "state.artifact", target="cpu")
    batch = random_batch(artifact.manifest.signature, 5, torch.Generator().manual_seed(1))
    names = [feature.name for feature in artifact.manifest.signature.sparse]
    features = recsys.KeyedJaggedTensor(names, batch.values, lengths=batch.lengths)
    torch.testing.assert_close(
        artifact.forward(*batch.inputs())["default"], theirs_of(model, features), rtol=1e-5, atol=1e-6
    )


def hashed(ids: Tensor, limit: int) -> Tensor:
    return (ids * 31) % limit


class Managed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
        from torchrec.modules.mc_modules import (
            LFU_EvictionPolicy,
            ManagedCollisionCollection,
            MCHManagedCollisionModule,
        )

        tables = bags("a")
        mapping = ManagedCollisionCollection(
            {
                "table_a": MCHManagedCollisionModule(
                    zch_size=NUM_ROWS,
                    device=torch.device("cpu"),
                    eviction_policy=LFU_EvictionPolicy(),
                    eviction_interval=1,
                    input_hash_size=10**15,
                    input_hash_func=hashed,
                )
            },
            tables.embedding_bag_configs(),
        )
        self.mc = ManagedCollisionEmbeddingBagCollection(tables, mapping)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        pooled, _ = self.mc(features)
        return pooled.values()


class Hashed(nn.Module):
    """A table whose rows are found by hash, of TorchRec's classes alone."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
        from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
        from torchrec.modules.mc_modules import ManagedCollisionCollection

        table = torchrec.EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=60, feature_names=["a"])
        tables = torchrec.EmbeddingBagCollection(tables=[table])
        theirs = HashZchManagedCollisionModule(60, torch.device("cpu"), 3)
        ours = HashZch(60, None, 3).train()
        ours(known)  # TorchRec's learns on CUDA devices alone
        theirs.load_state_dict(ours.state_dict())
        mapping = ManagedCollisionCollection({"t": theirs}, tables.embedding_bag_configs())
        self.mc = ManagedCollisionEmbeddingBagCollection(tables, mapping)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[valid-type]
        pooled, _ = self.mc(features)
        return pooled.values()


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # TorchRec 1.8's own
def test_rows_by_hash_are_exported(tmp_path: Path) -> None:
    known = torch.arange(30) * 10**12 + 7
    model = Hashed(known).eval()
    features = kjt_of({"a": [[one] for one in [*known.tolist(), *range(40)]]})
    expected = theirs_of(model, features)
    export_model(model, tmp_path / "artifact", ExportConfig(data_type=recsys.DataType.FP32))
    artifact = load_artifact(tmp_path / "artifact", target="cpu")
    found = artifact.forward(features.lengths(), features.values())["default"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.unique(expected[:30], dim=0).shape[0] == 30


def test_managed_collisions_keep_the_row_of_each_id(tmp_path: Path) -> None:
    model = Managed().train()
    seen = (torch.arange(30) * 10**12 - 7).tolist()
    for _ in range(2):
        model(
            torchrec.KeyedJaggedTensor(["a"], torch.tensor(seen), lengths=torch.ones(30, dtype=torch.int64))
        )
    model.eval()
    features = kjt_of({"a": [[one] for one in [*seen, 5, -5]]})
    expected = theirs_of(model, features)
    export_model(model, tmp_path / "artifact", ExportConfig(data_type=recsys.DataType.FP32))
    artifact = load_artifact(tmp_path / "artifact", target="cpu")
    found = artifact.forward(features.lengths(), features.values())["default"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(expected[0], expected[-1])
