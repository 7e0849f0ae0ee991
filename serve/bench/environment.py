"""The environment of a measurement: versions, machine, server, and the server's own metrics."""

from __future__ import annotations

import http.client
import os
import platform
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.base.machine import package_version
from serve.bench.load.native import native_versions
from serve.wire import predict_pb2 as wire

_PACKAGES = ("recsys-serving", "grpcio", "protobuf", "numpy")
_STAGES = ("queue", "collate", "execute", "respond")


def tool(sender: str) -> dict[str, Any]:
    """Return the versions of the client."""
    versions = {package: package_version(package) or "not installed" for package in _PACKAGES}
    native = native_versions() if sender == "native" else {}
    return {"python": platform.python_version(), **versions, **native}


def machine() -> dict[str, Any]:
    """Return the client's machine, without its name."""
    return {
        "cpu": _cpu(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def served(metadata: wire.ModelMetadata) -> dict[str, Any]:
    """Return the server's description of itself."""
    return {
        "model": metadata.model,
        "version": metadata.version,
        "target": metadata.target,
        "num_dense_inputs": len(metadata.dense),
        "num_sparse_inputs": len(metadata.sparse),
        "context": list(metadata.context),
        "torch": metadata.artifact.torch,
        "fbgemm": metadata.artifact.fbgemm,
        "digest": metadata.artifact.digest,
    }


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def scrape(address: str) -> dict[str, float]:
    """Return each sample of a server's metrics endpoint by its name and labels.

    Raises:
        OSError: no server answers at ``address``, or it is not a metrics endpoint; the message says which.
    """
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}
    except urllib.error.HTTPError as error:
        raise OSError(f"answered with HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(getattr(error.reason, "strerror", None) or str(error.reason)) from None
    except (http.client.HTTPException, ValueError):
        raise OSError("what answered is no metrics endpoint") from None


def server_figures(before: dict[str, float], after: dict[str, float]) -> dict[str, float | None]:
    """Return what the server counted between two scrapes: its mean batch, its stages in ms, and its caches of contexts.

    All models and versions of the server count. None if nothing happened between the scrapes.
    """
    figures = {
        "mean_batch_rows": _mean(before, after, "recsys_batch_rows"),
        "mean_batch_requests": _mean(before, after, "recsys_batch_requests"),
    }
    for stage in _STAGES:
        mean_s = _mean(before, after, "recsys_stage_seconds", f'stage="{stage}"')
        figures[f"mean_{stage}_ms"] = None if mean_s is None else 1e3 * mean_s
    return figures | _context_cache(before, after)


def _context_cache(before: dict[str, float], after: dict[str, float]) -> dict[str, float | None]:
    """Return what context caches did, and their bytes at the end; nothing where none was asked."""
    hits, misses, evictions = (
        _sum(after, name, "") - _sum(before, name, "")
        for name in (f"recsys_context_cache_{what}_total" for what in ("hits", "misses", "evictions"))
    )
    if hits + misses <= 0:
        return {}
    return {
        "context_cache_hit_rate": hits / (hits + misses),
        "contexts_computed": misses,
        "context_cache_evictions": evictions,
        "context_cache_bytes": _sum(after, "recsys_context_cache_bytes", ""),
    }


def _mean(before: dict[str, float], after: dict[str, float], name: str, label: str = "") -> float | None:
    total, count = (
        _sum(after, f"{name}_{part}", label) - _sum(before, f"{name}_{part}", label)
        for part in ("sum", "count")
    )
    return total / count if count > 0 else None


def _sum(samples: dict[str, float], name: str, label: str) -> float:
    """Return the sum of the samples of that name that have a label."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name and label in key)
