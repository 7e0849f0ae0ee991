"""Both senders of load, and what every measurement says."""

from __future__ import annotations

from typing import Any

import pytest

from serve.bench.load.native import why_not_native
from serve.bench.load.plan import Target

NOBODY = "127.0.0.1:9"
needs_native = pytest.mark.skipif(
    bool(why_not_native(Target(address=NOBODY))), reason="needs the native sender; make native builds it"
)
_SENDERS = [pytest.param("python", id="python"), pytest.param("native", id="native", marks=needs_native)]
both_senders = pytest.mark.parametrize("sender", _SENDERS)


def check(result: dict[str, Any]) -> None:
    made = result["measurement"]
    assert made["errors"] == {}
    assert made["num_answered"] > 0
    assert made["requests_per_s"] > 0
    latency = made["latency_ms"]
    values = [latency[name] for name in ("p50", "p90", "p95", "p99", "p99.9", "max")]
    assert values == sorted(values)
    assert values[0] > 0
    assert sum(count for _, count in made["histogram"]) == made["num_answered"]
    # Threads of the native sender either send or receive in an open loop.
    settings = result["settings"]
    is_open = settings["mode"] == "open" or settings.get("speed", "max") != "max"
    per_process = 2 if settings["sender"] == "native" and is_open else 1
    assert len(made["generator_cpu_shares"]) == settings["num_processes"] * per_process
    assert all(0 <= share < 1.5 for share in made["generator_cpu_shares"])
    assert result["server"]["model"] == "small"
