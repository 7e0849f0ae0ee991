"""Plans of one module beside TorchRec's: the same shards on the same ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recsys
from recsys.as_torchrec.parts import module_plans
from tests.peer.torchrec_peer import torchrec

pytestmark = pytest.mark.peer
PEER: Any = pytest.importorskip("torchrec.distributed.sharding_plan")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "table-wise": ("table_wise", {"rank": 3, "compute_kernel": "fused"}),
    "row-wise": ("row_wise", {}),
    "column-wise": ("column_wise", {"ranks": [2, 0]}),
    "column-wise, given sizes": ("column_wise", {"size_per_rank": [200, 100]}),
    "on a host": ("table_row_wise", {"host_index": 1}),
    "grid": ("grid_shard", {"host_indexes": [1, 0]}),
    "copies": ("data_parallel", {}),
}


def _plan(library: Any, helpers: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    table = library.EmbeddingBagConfig(name="t", num_embeddings=10, embedding_dim=256, feature_names=["f"])
    module = library.EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
    generate = getattr(helpers, name)(**arguments)
    plan = helpers.construct_module_sharding_plan(
        module, helpers.apply_to_all(module, generate), local_size=2, world_size=4, device_type="cpu"
    )
    found = plan["t"]
    spec = found.sharding_spec
    return {
        "type": found.sharding_type,
        "kernel": found.compute_kernel,
        "shards": [
            (list(s.shard_offsets), list(s.shard_sizes), str(s.placement))
            for s in (spec.shards if spec is not None else [])
        ],
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_shards_are_torchrecs(case: str) -> None:
    assert _plan(recsys, module_plans, *CASES[case]) == _plan(torchrec, PEER, *CASES[case])
