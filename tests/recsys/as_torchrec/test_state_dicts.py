"""Prefixes of names in state dicts."""

from __future__ import annotations

from collections import OrderedDict

from recsys.as_torchrec.parts.state_dicts import add_prefix_to_state_dict, append_prefix, filter_state_dict


def test_a_name_below_a_prefix() -> None:
    assert [append_prefix(*pair) for pair in (("a", "b"), ("", "b"), ("a", ""))] == ["a.b", "b", "a"]


def test_what_lies_below_a_name() -> None:
    state = OrderedDict([("a.b", 1), ("a.c.a.d", 2), ("ab.c", 3), ("a", 4)])
    assert filter_state_dict(state, "a") == OrderedDict([("b", 1), ("c.a.d", 2)])


def test_a_prefix_before_all_names() -> None:
    state = {"b": 1, "a": 2}
    add_prefix_to_state_dict(state, "x.")
    assert state == {"x.a": 2, "x.b": 1}
