"""The native server's metrics page is Python's: both are held to the same files.

``cpp_client/tests/observe`` compares the native page for the same numbers with what is compared here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from serve.batching import BatchLimits
from serve.metrics import Metrics
from serve.metrics_collector import server_version
from serve.model_metrics import ModelDescription

DATA = Path(__file__).parents[2] / "cpp_client" / "tests" / "data" / "observe"


def _filled() -> Metrics:
    metrics = Metrics()
    metrics.unrouted("not_found")
    metrics.unrouted("invalid")
    first = metrics.begin('dlrm "\\\n', "1")
    for seconds in (0.0015, 12.5, 5e-5):
        first.answered(seconds)
    first.count("rejected")
    first.accepted()
    first.accepted()
    first.observe_stages([1e-6, 0.25], 0.001, 0.0035, 1e-7)
    first.observe("queue", 100.0)
    first.observe_batch(2, 300, 123_456_789)
    first.observe_batch(1, 8192, 16)
    first.set_pending(3, 1_234_567, 10_000_000_000)
    first.set_table_bytes({"items": 123_456_789_012, "users": 4096})
    first.describe(
        ModelDescription(target="cpu", digest="0123456789ab", num_executors=2, limits=BatchLimits())
    )
    first.shadow("same")
    first.shadow("dropped")
    first.delta_applied()
    first.delta_failed()
    metrics.begin("plain", "2")
    metrics.set_state("plain", "2", "loading")
    metrics.set_state("dlrm", "1", "failed")
    metrics.set_state("plain", "2", "ready")
    metrics.set_state("gone", "1", "ready")
    metrics.set_state("gone", "1", "available")
    metrics.watch("capture", lambda: {"written": 7, "dropped": 1_000_000})
    metrics.watch("log", lambda: {"dropped": 3})
    return metrics


@pytest.mark.parametrize(
    ("name", "encode"),
    [("page.txt", generate_latest), ("page_open_metrics.txt", generate_open_metrics)],
    ids=["text", "open_metrics"],
)
def test_the_native_page_is_held_to_what_python_shows(
    name: str, encode: Callable[[CollectorRegistry], bytes]
) -> None:
    page = encode(_filled().registry).decode().partition("# HELP process_")[0]
    assert page == (DATA / name).read_text()


def test_the_native_server_names_the_release_of_the_package() -> None:
    header = DATA.parents[2] / "server" / "observe" / "release.h"
    assert f'kRelease = "{server_version()}";' in header.read_text()
