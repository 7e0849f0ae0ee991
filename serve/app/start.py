"""What recsys-serve does once its settings are read: check all that they name, or serve until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

from recsys.base.allocator import tune_malloc
from serve.app.check_config import check, print_report
from serve.app.lifetime import serve
from serve.app.server import MakeEngine
from serve.config.settings import ProcessConfig, Settings
from serve.config.sources import Effective
from serve.engine.choose import choose_engine
from serve.models.repository import ModelSource
from serve.net.limits import allow_open_files, missing_open_files, num_ports
from serve.observe.logs import shut_down_logging

_log = logging.getLogger("serve")


def set_process(process: ProcessConfig) -> None:
    """Apply the settings of the whole process: threads, allocator, the interpreter's lock."""
    torch.set_num_threads(process.intra_op_threads)
    sys.setswitchinterval(process.switch_interval_us * 1e-6)
    if process.malloc_tuning and not tune_malloc():
        _log.warning("this C library has no mallopt: the allocator stays as it is")


def freeze_imports() -> None:
    """Exclude imported modules from garbage collection. Call this before models are loaded.

    Modules and classes live as long as the process, and a collection that scans torch's takes about 0.2 s
    while requests wait. Models come and go, and must not be frozen.
    """
    gc.collect()
    gc.freeze()


def check_all(found: Effective, source: ModelSource, *, as_json: bool) -> int:
    """Look at all that the settings name, print what is found, and return the exit code."""
    findings = check(found.settings, source)
    print_report(found, findings, as_json=as_json)
    return 2 if any(finding.is_error for finding in findings) else 0


def prepare(settings: Settings, source: ModelSource) -> MakeEngine:
    """Read an artifact's manifest, set up the process, and return what makes the engine.

    Raises:
        ArtifactError: the manifest is damaged.
        EngineError: the engine is not available.
    """
    source.names()
    make_engine = choose_engine(settings.process.engine)
    set_process(settings.process)
    freeze_imports()
    return make_engine


def serve_to_the_end(
    found: Effective,
    source: ModelSource,
    make_engine: MakeEngine,
    read: Callable[[], Effective],
    *,
    as_json: bool,
) -> NoReturn:
    """Serve until SIGTERM, and end the process.

    Args:
        found: the settings.
        source: the source of the models.
        make_engine: makes the engine.
        read: reads the settings again.
        as_json: whether the ready and stopped lines are JSON.

    Raises:
        StartError: nothing was served.
    """
    settings = found.settings
    if settings.server.admin is not None and settings.server.admin.routing_file is None:
        _log.warning(
            "routing that operators set does not survive a restart: admin.routing_file names no file; "
            "pass --admin-routing-file FILE"
        )
    limits = settings.server.connections
    ports = num_ports(settings.server)
    allow_open_files(limits, ports)
    left = missing_open_files(limits, ports)
    if left:
        _log.warning(
            "max_connections is %d on each of %d ports, %d more in all than this process may have files for",
            limits.max_connections,
            ports,
            left,
        )
    code = asyncio.run(
        serve(
            source,
            settings.server,
            make_engine,
            as_json=as_json,
            read_config=lambda: read().settings.server,
        )
    )
    # A batch may still be running, or a model loading. If Python ended that thread within native code, the
    # process would abort.
    shut_down_logging()
    # Lines on standard output were flushed as they were printed.
    os._exit(code)
