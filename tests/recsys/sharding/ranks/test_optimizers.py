"""Optimizers in the backward pass and beside it, on ranks: weights and states as one optimizer for all would have them.

A table that is cut by columns has one number of row-wise state per row and block of columns.
"""

from __future__ import annotations

import pytest
import torch

from tests.recsys.sharding.ranks.cases import Draw, random_case
from tests.recsys.sharding.ranks.training import check_case

DRAWS = {
    **{f"W=2 {i}": Draw(world_size=2, num_steps=3) for i in range(12)},
    **{f"W=4 {i}": Draw(world_size=4, num_steps=3) for i in range(12)},
    **{f"W=4 sequence {i}": Draw(world_size=4, num_steps=2, sequence=True) for i in range(5)},
}
_STATE = {"adagrad": "momentum1", "rowwise_adagrad": "momentum1"}


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize("name", list(DRAWS))
def test_weights_and_states_are_those_of_one_optimizer(name: str, optimizer: str) -> None:
    case = random_case(f"optimizer {name}", DRAWS[name])
    expected, results = check_case(case, optimizer)
    container = "embeddings" if case.draw.sequence else "embedding_bags"
    for table in case.tables:
        sharding = case.plan[table.name]
        if sharding.compute_kernel != "fused":
            continue
        parameter = f"{container}.{table.name}.weight"
        whole = torch.cat([state["sum"] for state in expected.states[table.name]], dim=1)
        if whole.shape != (table.num_embeddings, table.embedding_dim) and whole.shape[1] == 1:
            whole = whole[:, 0]
        seen = torch.zeros(whole.shape)
        for result in results:
            # Every rank knows the state, also of tables of which it holds nothing.
            assert list(result.states[parameter]) == [f"{table.name}.{_STATE[optimizer]}"]
            for shard in result.states[parameter][f"{table.name}.{_STATE[optimizer]}"]:
                shard.of(seen).add_(1)
                torch.testing.assert_close(
                    shard.tensor.view(shard.sizes), shard.of(whole), rtol=1e-4, atol=1e-5
                )
        assert bool((seen == 1).all()), parameter


def test_the_random_cases_hold_column_blocks_of_fused_tables() -> None:
    cases = [random_case(f"optimizer {name}", draw) for name, draw in DRAWS.items()]
    blocks = [
        len(case.column_blocks(table))
        for case in cases
        for table in case.tables
        if case.plan[table.name].compute_kernel == "fused"
    ]
    assert sum(number > 1 for number in blocks) > 0
