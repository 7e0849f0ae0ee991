"""Figures from the server's own metrics."""

from __future__ import annotations

from serve.bench.environment import server_figures


def _scraped(hits: float, misses: float, evictions: float, num_bytes: float) -> dict[str, float]:
    labels = '{model="a",version="1"}'
    return {
        f"recsys_context_cache_hits_total{labels}": hits,
        f"recsys_context_cache_misses_total{labels}": misses,
        f"recsys_context_cache_evictions_total{labels}": evictions,
        f"recsys_context_cache_bytes{labels}": num_bytes,
        'recsys_context_cache_hits_total{model="b",version="1"}': 1,
    }


def test_caches_of_contexts() -> None:
    found = server_figures(_scraped(100, 50, 1, 10), _scraped(175, 75, 4, 640))
    assert found["mean_batch_rows"] is None
    assert {key: value for key, value in found.items() if "context" in key} == {
        "context_cache_hit_rate": 0.75,
        "contexts_computed": 25,
        "context_cache_evictions": 3,
        "context_cache_bytes": 640,
    }


def test_no_cache_says_nothing() -> None:
    assert not [key for key in server_figures(_scraped(1, 2, 0, 0), _scraped(1, 2, 0, 0)) if "context" in key]
