"""What a sharder's own types and kernels leave of a table's options, and where equal options are placed."""

from __future__ import annotations

import pytest
from torch import nn

from recsys import EmbeddingBagCollection
from recsys.as_torchrec.planner.enumerators import EmbeddingEnumerator
from recsys.as_torchrec.planner.partitioners import GreedyPerfPartitioner
from recsys.planner.cost.topology import Topology
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from tests.support.helpers import bag


class OnlyDense(EmbeddingBagCollectionSharder):
    kinds: tuple[str, ...] = ("table_wise",)

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(self.kinds)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["dense"]


@pytest.mark.parametrize(
    "kind", ["table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise"]
)
def test_what_a_sharder_leaves_is_taken(kind: str) -> None:
    sharder = OnlyDense()
    sharder.kinds = (kind,)
    model = nn.Sequential(EmbeddingBagCollection([bag("t", 100, 40, ["f"])]))
    options = EmbeddingEnumerator(Topology(2, "cuda")).enumerate(model, [sharder])
    assert [(option.sharding_type, option.compute_kernel) for option in options] == [(kind, "dense")]


def test_equally_busy_ranks_are_taken_host_by_host() -> None:
    topology = Topology(4, "cuda", local_world_size=2)
    model = nn.Sequential(EmbeddingBagCollection([bag(f"t{i}", 100, 8, [f"f{i}"]) for i in range(4)]))
    options = EmbeddingEnumerator(topology).enumerate(model, [OnlyDense()])
    placed = GreedyPerfPartitioner().partition(options, topology)
    assert [option.get_shards_assignment() for option in placed] == [[0], [2], [1], [3]]
