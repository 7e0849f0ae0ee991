"""Collections of raw IDs beside TorchRec's: its checkpoints load, and give the same embeddings."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import recsys
from recsys import managed
from tests.peer.torchrec_peer import configs, torchrec

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
KEYS = ["a", "b", "c"]


def modules_of(m: Any) -> tuple[Any, Any]:
    if m is recsys:
        return managed, managed
    from torchrec.modules import mc_embedding_modules, mc_modules

    return mc_embedding_modules, mc_modules


def collection(m: Any, pooled: bool) -> Any:
    embedding, mc = modules_of(m)
    kind = "EmbeddingBagConfig" if pooled else "EmbeddingConfig"
    config = getattr(m if m is recsys else configs, kind)
    tables = [
        config(num_embeddings=8, embedding_dim=4, name="t", feature_names=["b", "a"]),
        config(num_embeddings=20, embedding_dim=4, name="u", feature_names=["c"]),
    ]
    modules = {
        table.name: mc.MCHManagedCollisionModule(
            zch_size=table.num_embeddings,
            device=torch.device("cpu"),
            eviction_policy=mc.DistanceLFU_EvictionPolicy(),
            eviction_interval=2,
            input_hash_size=1000,
            input_hash_func=lambda ids, size: ids % size,
        )
        for table in tables
    }
    mapping = mc.ManagedCollisionCollection(modules, tables)
    if pooled:
        tables_of = m.EmbeddingBagCollection(tables)
        return embedding.ManagedCollisionEmbeddingBagCollection(
            tables_of, mapping, return_remapped_features=True
        )
    tables_of = m.EmbeddingCollection(tables)
    return embedding.ManagedCollisionEmbeddingCollection(tables_of, mapping, return_remapped_features=True)


def batch(m: Any, seed: int) -> Any:
    rng = random.Random(seed)
    lengths = [rng.randrange(4) for _ in range(9)]
    values = torch.tensor([rng.randrange(5000) for _ in range(sum(lengths))], dtype=torch.int64)
    return m.KeyedJaggedTensor.from_lengths_sync(KEYS, values, torch.tensor(lengths))


@pytest.mark.parametrize("pooled", [True, False], ids=["pooled", "sequence"])
def test_a_checkpoint_loads_and_answers_the_same(pooled: bool) -> None:
    theirs, ours = collection(torchrec, pooled), collection(recsys, pooled)
    theirs.train()
    for seed in range(4):
        theirs(batch(torchrec, seed))
    ours.load_state_dict(theirs.state_dict())
    theirs.eval(), ours.eval()
    for seed in range(3, 8):
        expected, expected_rows = theirs(batch(torchrec, seed))
        found, rows = ours(batch(recsys, seed))
        assert rows.keys() == expected_rows.keys() == ["b", "a", "c"]
        assert torch.equal(rows.values(), expected_rows.values())
        assert torch.equal(rows.lengths(), expected_rows.lengths())
        if pooled:
            assert torch.equal(found.values(), expected.values())
        else:
            assert all(torch.equal(found[key].values(), expected[key].values()) for key in KEYS)
    assert {
        table: slots.tolist() for table, slots in ours.managed_collision_collection.open_slots().items()
    } == {table: slots.tolist() for table, slots in theirs._managed_collision_collection.open_slots().items()}


def hashed(m: Any, **options: Any) -> Any:
    if m is recsys:
        return managed.HashZchManagedCollisionModule(40, torch.device("cpu"), 4, **options)
    from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule

    return HashZchManagedCollisionModule(40, torch.device("cpu"), 4, **options)


def times(m: Any) -> dict[str, Any]:
    from torchrec.modules import hash_mc_evictions

    evictions: Any = managed if m is recsys else hash_mc_evictions
    return {
        "eviction_policy_name": evictions.HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
        "eviction_config": evictions.HashZchEvictionConfig(features=["a"], single_ttl=5),
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_probe": 3},
        {"opt_in_prob": 100, "percent_reserved_slots": 20},
        {"input_hash_size": 4001},
        {"output_segments": [0, 3, 10, 25, 40]},
        {"track_id_freq": True},
        {"persist_hash_zch_bucket": False},
        {"is_inference": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("lives", [False, True], ids=["forever", "with times"])
def test_rows_by_hash_are_torchrecs(options: dict[str, Any], lives: bool) -> None:
    # On a CPU TorchRec looks rows up and gives none: ours learns, and both read what it has learned.
    theirs, ours = (hashed(m, **options, **(times(m) if lives else {})) for m in (torchrec, recsys))
    generator = torch.Generator().manual_seed(0)
    ours.train()
    for _ in range(3):
        ours(torch.randint(0, 4000, (12,), generator=generator))
    state = ours.state_dict()
    assert {name: (t.shape, t.dtype) for name, t in state.items()} == {
        name: (t.shape, t.dtype) for name, t in theirs.state_dict().items()
    }
    theirs.load_state_dict(state)
    ours.load_state_dict(theirs.state_dict())
    theirs.reset_intrainer_bulk_eval_mode()  # with a policy it does not run on a CPU
    owners = ours.owners()[0]
    ids = torch.cat([owners[owners >= 0], torch.randint(0, 4000, (2000,), generator=generator)])
    features = {"a": torchrec.JaggedTensor(ids, lengths=torch.ones_like(ids))}
    expected = theirs.remap(features)["a"].values()
    assert torch.equal(ours.eval()(ids), expected)
    assert expected.unique().numel() > 20
