"""What a measurement was made with: versions, machine, server."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from serve.wire import predict_pb2 as wire

_PACKAGES = ("recsys-serving", "grpcio", "protobuf", "numpy")


def tool() -> dict[str, Any]:
    """Versions of what sends."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {"python": platform.python_version(), **versions}


def machine() -> dict[str, Any]:
    """The machine that sends; its name is nobody's business."""
    return {
        "cpu": _cpu(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def served(metadata: wire.ModelMetadata) -> dict[str, Any]:
    """What answers, as it says itself."""
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
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
