"""The settings that Python and the native engine share are written once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from serve.config.bounds import Bounds
from serve.config.models import BatchLimits
from serve.config.settings import ConnectionLimits
from serve.engine.interface import PortSettings, SubmitOptions, Submitted
from serve.engine.native_settings import RouteSpec, VersionSettings, as_json, headers

_CPP = Path(__file__).parents[3] / "cpp_client"


@pytest.mark.parametrize("path", headers())
def test_the_headers_of_the_native_engine_are_those_of_the_settings(path: str) -> None:
    # python -m serve.engine.native_settings cpp_client
    assert (_CPP / path).read_text() == headers()[path]


def test_a_header_has_names_types_defaults_bounds_and_descriptions() -> None:
    limits = headers()["port/limits.h"]
    assert "  /// Size of the names and values of one call's headers.\n" in limits
    assert "  std::int64_t max_header_bytes = 16384;\n" in limits
    assert 'visit("max_header_bytes", self.max_header_bytes, Bounds{1024, 2147483647});' in limits
    assert 'visit("keepalive_s", self.keepalive_s, Bounds{0.001, 2147483, true});' in limits
    assert "max_json_bytes" not in limits  # REST's alone
    settings = headers()["engine/settings/settings.h"]
    assert "  std::optional<double> trace_share;\n" in settings
    assert "  RingLimits captured_ring{1024, 67108864};\n" in settings


def test_settings_cross_the_binding_by_their_names() -> None:
    port = json.loads(as_json(PortSettings(host="::", connections=ConnectionLimits(max_connections=7))))
    assert port["host"] == "::"
    assert port["connections"]["max_connections"] == 7
    assert "max_json_bytes" not in port["connections"]
    assert "tls" not in port
    version = json.loads(as_json(VersionSettings(name="m", cpus=(0, 2), limits=BatchLimits(max_batch_ids=5))))
    assert (version["cpus"], version["target"]) == ([0, 2], None)
    assert version["limits"] == dataclasses.asdict(BatchLimits(max_batch_ids=5))
    assert json.loads(as_json(RouteSpec(loading=("4",))))["loading"] == ["4"]
    assert json.loads(as_json(SubmitOptions(headers={"a": "b"})))["headers"] == {"a": "b"}
    submitted = json.loads(as_json(Submitted(message=b"\xff", protocol="ray"), SubmitOptions))
    assert submitted["protocol"] == "ray"
    assert submitted.keys() == json.loads(as_json(SubmitOptions())).keys()


@pytest.mark.parametrize(
    ("bounds", "right", "wrong"),
    [
        (
            Bounds(least=1),
            [1, 10**18],
            {
                0: "n: got 0, expected at least 1",
                float("inf"): "n: got inf, expected at least 1",
                float("nan"): "n: got nan, expected at least 1",
            },
        ),
        (
            Bounds(least=0, most=1),
            [0, 0.5, 1],
            {-0.5: "n: got -0.5, expected at least 0", 2: "n: got 2, expected at most 1"},
        ),
        (
            Bounds(least=0.001, most=9, or_zero=True),
            [0, 0.001, 9],
            {
                0.0001: "n: got 0.0001, expected 0 (no bound) or 0.001 to 9",
                10: "n: got 10, expected 0 (no bound) or 0.001 to 9",
            },
        ),
        (
            Bounds(least=0, or_zero=True),
            [0, 3.5],
            {
                -1: "n: got -1, expected 0 (no bound) or more",
                float("inf"): "n: got inf, expected 0 (no bound) or more",
            },
        ),
    ],
)
def test_bounds_say_what_they_got_and_expected(
    bounds: Bounds, right: list[float], wrong: dict[float, str]
) -> None:
    for value in right:
        bounds.check("n", value)
    for value, text in wrong.items():
        with pytest.raises(ValueError) as refusal:
            bounds.check("n", value)
        assert str(refusal.value) == text
