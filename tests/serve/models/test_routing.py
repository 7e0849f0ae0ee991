"""Which version answers: the policy, draw by draw and against its shares."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.models import LATEST, Routing
from serve.engine.interface import Servable
from serve.engine.routes import Plan, RouteTable, keyed_draw
from serve.models.routing import newest, plan, version_order

VERSIONS = st.sampled_from(["1", "2", "3", "10"])


def test_by_default_the_newest_version_serves() -> None:
    assert plan(Routing(), ["2", "10", "9"]) == Plan(serving="10")
    assert plan(Routing(), []) == Plan()


@pytest.mark.parametrize("ready", [["1", "2", "3"], ["2"]])
def test_a_pinned_version_serves_whatever_else_is_there(ready: list[str]) -> None:
    assert plan(Routing(serve="2"), ready).serving == "2"


def test_nothing_takes_the_place_of_a_pinned_version() -> None:
    assert plan(Routing(serve="2"), ["1", "3"]).serving == ""
    routing = Routing(serve="2", canary="3", canary_percent=10)
    assert [plan(routing, ["1", "3"]).pick(draw) for draw in (0.05, 0.5)] == [("3", ""), ("", "")]


def test_canary_and_shadow_are_not_what_latest_means() -> None:
    routing = Routing(canary="4", canary_percent=1, shadow="3", shadow_percent=1)
    assert plan(routing, ["1", "2", "3", "4"]).serving == "2"


def test_a_canary_that_is_alone_answers_all_and_a_shadow_nothing() -> None:
    assert plan(Routing(canary="4", canary_percent=1), ["4"]).pick(0.5) == ("4", "")
    assert plan(Routing(shadow="4", shadow_percent=100), ["4"]).pick(0.5) == ("", "4")


def test_versions_that_are_not_ready_are_left_out() -> None:
    routing = Routing(serve="1", canary="2", canary_percent=50, shadow="3", shadow_percent=50)
    assert plan(routing, ["1"]) == Plan(serving="1")


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        pytest.param(0.0, ("2", ""), id="lowest"),
        pytest.param(0.0999, ("2", ""), id="still-canary"),
        pytest.param(0.1, ("1", ""), id="no-longer"),
        pytest.param(0.7999, ("1", ""), id="not-yet-shadow"),
        pytest.param(0.8, ("1", "3"), id="shadow"),
        pytest.param(0.9999, ("1", "3"), id="highest"),
    ],
)
def test_the_canary_takes_the_lowest_draws_and_the_shadow_the_highest(
    draw: float, expected: tuple[str, str]
) -> None:
    routing = Routing(serve="1", canary="2", canary_percent=10, shadow="3", shadow_percent=20)
    assert plan(routing, ["1", "2", "3"]).pick(draw) == expected


def test_all_requests_can_be_a_canarys_and_have_a_shadow() -> None:
    routing = Routing(serve="1", canary="2", canary_percent=100, shadow="3", shadow_percent=100)
    chosen = plan(routing, ["1", "2", "3"])
    assert {chosen.pick(draw) for draw in (0.0, 0.5, 1 - 2**-53)} == {("2", "3")}


def test_a_version_is_not_its_own_shadow() -> None:
    routing = Routing(serve="1", canary="2", canary_percent=100, shadow="2", shadow_percent=100)
    assert plan(routing, ["1", "2"]).pick(0.5) == ("2", "")


def test_shares_are_kept() -> None:
    chosen = plan(
        Routing(serve="1", canary="2", canary_percent=5, shadow="3", shadow_percent=30), ["1", "2", "3"]
    )
    draw = random.Random(1).random
    counts = Counter(chosen.pick(draw()) for _ in range(20_000))
    assert counts["2", ""] / 20_000 == pytest.approx(0.05, abs=0.01)
    assert counts["1", "3"] / 20_000 == pytest.approx(0.3, abs=0.015)
    assert set(counts) == {("2", ""), ("1", "3"), ("1", "")}


def keyed(percent: float, **key: str) -> RouteTable:
    """A table of a key whose versions are named after themselves."""
    routing = Routing(serve="1", canary="2", canary_percent=percent, **key)
    versions = {name: cast(Servable, name) for name in ("1", "2")}
    return RouteTable(model="m", plan=plan(routing, versions), servables=versions)


@pytest.mark.parametrize("key", ["feature:user", "header:x-user"])
def test_keys_are_divided_by_the_share_and_stay_where_they_are(key: str) -> None:
    users = range(-5000, 5000)
    before: set[int] = set()
    for percent in (1, 20, 50, 100):
        table = keyed(percent, canary_key=key)
        canary = {user for user in users if table.route("", 0.999, key=user).primary == "2"}
        assert canary == {user for user in users if table.route("", 0.0, key=user).primary == "2"}
        assert len(canary) / 10_000 == pytest.approx(percent / 100, abs=0.015)
        assert before <= canary
        before = canary


def test_models_divide_their_users_differently() -> None:
    draws = [(keyed_draw("a", user), keyed_draw("b", user)) for user in range(10_000)]
    both = sum(a < 0.5 and b < 0.5 for a, b in draws)
    assert both / 10_000 == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("percent", [10, 100])
def test_a_request_without_its_key_gets_the_version_that_serves(percent: float) -> None:
    table = keyed(percent, canary_key="feature:user")
    routes = [table.route("", draw) for draw in (0.0, 0.05, 0.5, 1 - 2**-53)]
    assert {(route.primary, route.key_feature) for route in routes} == {("1", "user")}
    assert table.route("", 0.5, key=1).key_feature == ""
    assert table.route("2", 0.5).key_feature == ""
    assert keyed(percent, canary_key="header:x").route("", 0.5).key_feature == ""


def test_a_key_is_nothing_without_a_canary_that_is_ready() -> None:
    routing = Routing(serve="1", canary="2", canary_percent=10, canary_key="feature:user")
    assert not plan(routing, ["1"]).is_keyed
    assert routing.without("2") == Routing(serve="1")
    assert routing.pinned("3").canary_key == "feature:user"


@given(
    serve=st.just(LATEST) | VERSIONS,
    canary=st.just("") | VERSIONS,
    shadow=st.just("") | VERSIONS,
    ready=st.sets(VERSIONS),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_only_versions_that_are_ready_are_picked(
    serve: str, canary: str, shadow: str, ready: set[str], draw: float
) -> None:
    canary, shadow = ("" if name == serve else name for name in (canary, shadow))
    routing = Routing(
        serve=serve,
        canary=canary,
        canary_percent=50 if canary else 0,
        shadow=shadow,
        shadow_percent=50 if shadow else 0,
    )
    primary, twin = plan(routing, ready).pick(draw)
    assert {primary, twin} <= {*ready, ""}
    assert not twin or twin != primary
    if serve in ready or (serve == LATEST and ready - {canary, shadow}):
        assert primary


def test_versions_are_ordered_by_number() -> None:
    assert sorted(["10", "9", "1", "ab12", "a"], key=version_order) == ["a", "ab12", "1", "9", "10"]
    assert newest([]) == ""


def test_pinning_drops_a_canary_or_shadow_of_that_version() -> None:
    routing = Routing(canary="2", canary_percent=5, shadow="3", shadow_percent=6)
    assert routing.pinned("2") == Routing(serve="2", shadow="3", shadow_percent=6)
    assert routing.pinned("3") == Routing(serve="3", canary="2", canary_percent=5)
    assert routing.pinned("1").named == {"1", "2", "3"}
    assert routing.without("2").named == {"3"}


@pytest.mark.parametrize(
    ("given_values", "text"),
    [
        ({"serve": ""}, "serve: got an empty text"),
        ({"canary": "2"}, "canary_percent: got 0.0, expected above 0, up to 100"),
        ({"shadow": "2", "shadow_percent": 101}, "shadow_percent: got 101"),
        ({"canary": "2", "canary_percent": float("nan")}, "canary_percent: got nan"),
        ({"canary_percent": 5}, "canary: got no version for 5 percent"),
        ({"serve": "2", "canary": "2", "canary_percent": 5}, "canary: got '2', expected another version"),
        ({"shadow": "latest", "shadow_percent": 5}, "shadow: got 'latest', expected another version"),
        ({"canary_key": "feature:a"}, "canary: got no version for canary_key 'feature:a'"),
        *(
            (
                {"canary": "2", "canary_percent": 5, "canary_key": key},
                f"canary_key: got '{key}', expected feature:",
            )
            for key in ("user", "feature:", "header:", "cookie:a")
        ),
        *(
            (
                {"canary": "2", "canary_percent": 5, "canary_key": key},
                f"canary_key: got '{key}', expected a header",
            )
            for key in ("header:X-User", "header:a b", "header:key-bin")
        ),
    ],
)
def test_routings_that_contradict_themselves_are_refused(given_values: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Routing(**given_values)  # type: ignore[arg-type]
