"""How many executors run what waits: decisions at given times, and costs that are learned."""

from __future__ import annotations

import math
import random

import pytest

from serve.engine.reference.policy import BatchCosts, BatchPolicy


def seconds(num_rows: int, num_ids: int) -> float:
    return 300e-6 + 22e-6 * num_rows + 0.1e-6 * num_ids


def known() -> BatchPolicy:
    policy = BatchPolicy()
    for _ in range(200):
        for rows in (1, 2, 8, 32, 128):
            policy.costs.learn(rows, 20 * rows, seconds(rows, 20 * rows))
    return policy


def test_costs_are_learned_from_mixed_batches() -> None:
    costs, draw = BatchCosts(), random.Random(1)
    for _ in range(500):
        rows = draw.randint(1, 256)
        ids = rows * draw.randint(1, 100)
        costs.learn(rows, ids, seconds(rows, ids))
    for rows, ids in ((1, 20), (64, 64), (64, 6400), (256, 5000)):
        assert costs.seconds(rows, ids) == pytest.approx(seconds(rows, ids), rel=0.1)


def test_costs_follow_a_model_that_becomes_slower() -> None:
    costs = known().costs
    for _ in range(100):
        costs.learn(32, 640, 3 * seconds(32, 640))
    assert costs.seconds(32, 640) == pytest.approx(3 * seconds(32, 640), rel=0.1)


@pytest.mark.parametrize("duration_s", [1.0, math.nan, math.inf, -1.0])
def test_one_odd_duration_moves_the_costs_little(duration_s: float) -> None:
    costs = known().costs
    before_s = costs.seconds(8, 160)
    costs.learn(8, 160, duration_s)
    assert costs.seconds(8, 160) < 1.5 * before_s


def test_the_first_executor_always_takes_what_waits() -> None:
    assert BatchPolicy().pays(1, 20, 0.0)
    assert known().pays(1, 20, 0.0)


def test_a_further_executor_starts_where_the_running_batch_takes_longer() -> None:
    policy = known()
    policy.began(128, 2560, 0.0)
    assert policy.pays(1, 20, 1e-4)
    assert not policy.pays(1, 20, seconds(128, 2560) - 50e-6)
    assert policy.pays(1, 20, seconds(128, 2560) - 50e-6, is_awake=True)


def test_a_batch_that_is_far_overdue_does_not_hold_up_the_others() -> None:
    policy = known()
    policy.began(1, 20, 0.0)
    assert policy.pays(1, 20, policy.looks_again_s(0.0))


def test_executors_that_slow_each_other_down_do_not_start() -> None:
    policy = known()
    for _ in range(100):
        first, second = policy.began(32, 640, 0.0), policy.began(32, 640, 0.0)
        for batch in (first, second):
            policy.ended(batch, 2.5 * seconds(32, 640))
    assert policy.slowdown > 1.8
    policy.began(32, 640, 0.0)
    assert not policy.pays(32, 640, 1e-5, is_awake=True)
    assert policy.share(64, 1280, 1) == 64


def test_the_slowdown_is_forgotten_while_batches_run_alone() -> None:
    policy = known()
    policy.slowdown = 3.0
    for _ in range(5000):
        policy.ended(policy.began(32, 640, 0.0), seconds(32, 640))
    assert policy.slowdown < 1.05


def test_free_executors_share_what_waits() -> None:
    policy = known()
    assert policy.share(256, 5120, 3) == 64
    assert policy.share(256, 5120, 0) == 256
    assert policy.share(8, 160, 3) == 8


def test_a_batch_is_over_before_long_if_there_is_a_light_client() -> None:
    policy = known()
    assert policy.share(512, 10240, 0) == 512
    most = policy.share(512, 10240, 0, is_short=True)
    assert most < 256
    # However many wait, and a batch still costs little beside its rows.
    assert abs(policy.share(8192, 163840, 0, is_short=True) - most) <= 1
    assert seconds(most, 20 * most) > 12 * seconds(0, 0)


def test_a_batch_may_be_long_where_each_has_a_high_fixed_cost() -> None:
    policy = BatchPolicy()
    for _ in range(200):
        for rows in (1, 8, 128):
            policy.costs.learn(rows, 0, 1e-3 + 1e-6 * rows)
    assert policy.share(8192, 0, 0, is_short=True) == 8192


def test_a_batch_of_expired_requests_teaches_nothing() -> None:
    policy = BatchPolicy()
    for _ in range(10):
        policy.ended(policy.began(0, 0, 0.0), 1.0)
    assert not policy.costs.is_known
    assert policy.num_running == 0
