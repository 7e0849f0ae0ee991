"""Random collections, plans and batches: float oracle, quantized, sharded, traced and scripted agree."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.sharding.plan.env import ShardingEnv
from tests.support.helpers import STORED_TYPES, Case, needs_gpu, outputs_of, random_case, rounding, scripted

BATCH_SIZES = (0, 1, 2, 17)


def check(case: Case, rng: random.Random, devices: list[str]) -> None:
    """The properties that the whole library is about."""
    quantized = case.quantized()
    oracle = quantized.dequantize()
    sharded = quantized.shard(case.plan, ShardingEnv.over_devices(devices))
    script = scripted(sharded, case.keys, weighted=case.weighted)
    placement_only = {
        pair.name
        for pair in sharded.layout.pairs
        if case.plan[case.tables[pair.table].name].sharding_type != "row_wise"
        or len(case.plan[case.tables[pair.table].name].shards) == 1
    }
    for num_rows in BATCH_SIZES:
        batch = case.batch(rng, num_rows).validate()
        expected, whole, cut = (outputs_of(m(batch)) for m in (oracle, quantized, sharded))
        weights = batch.weights_or_none()
        from_graph = script(batch.lengths(), batch.values(), torch.zeros(0) if weights is None else weights)
        atol = 0.0 if case.sequence else rounding(oracle, batch)
        assert list(expected) == list(whole) == list(cut) == list(from_graph)
        for name, answer in expected.items():
            one_step = rounding(oracle, batch) if case.sequence else atol
            torch.testing.assert_close(whole[name], answer, rtol=0, atol=one_step)
            same_place = case.sequence or name in placement_only
            torch.testing.assert_close(cut[name].cpu(), whole[name], rtol=0, atol=0.0 if same_place else atol)
            assert torch.equal(from_graph[name], cut[name]), name


@pytest.mark.parametrize("seed", range(60))
def test_every_path_agrees(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    case = random_case(rng)
    check(case, rng, ["cpu"] * case.world_size)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_every_path_agrees_by_hypothesis(rng: random.Random) -> None:
    torch.manual_seed(0)
    case = random_case(rng)
    check(case, rng, ["cpu"] * case.world_size)


def test_the_random_cases_hold_what_they_should() -> None:
    cases = [random_case(random.Random(seed)) for seed in range(60)]
    kinds = {s.sharding_type for case in cases for s in case.plan.values() if len(s.shards) > 1}
    assert kinds == {"column_wise", "row_wise"}
    assert {case.sequence for case in cases} == {case.weighted for case in cases} == {True, False}
    assert {t for case in cases for t in case.data_types.values()} >= set(STORED_TYPES)
    means = [
        table
        for case in cases
        for table in case.tables
        if not case.sequence and len(case.plan[table.name].shards) > 1 and table.pooling.value == "MEAN"
    ]
    assert means


class TestGpu:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("seed", range(20))
    def test_two_ranks_on_one_gpu_agree_with_the_host(self, seed: int) -> None:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        case = random_case(rng)
        quantized = case.quantized()
        host = quantized.shard(case.plan, ShardingEnv.over_devices(["cpu"] * case.world_size))
        gpu = quantized.shard(case.plan, ShardingEnv.over_devices(["cuda:0"] * case.world_size))
        for num_rows in BATCH_SIZES:
            batch = case.batch(rng, num_rows)
            atol = rounding(quantized.dequantize(), batch)
            on_gpu = outputs_of(gpu(batch))
            for name, answer in outputs_of(host(batch)).items():
                torch.testing.assert_close(on_gpu[name].cpu(), answer, rtol=0, atol=atol)
