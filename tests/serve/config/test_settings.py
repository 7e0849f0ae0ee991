"""Settings out of range, errors, the allocator, servers that cannot start: the small parts."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recsys.base.allocator import tune_malloc
from serve.config.models import ModelSettings
from serve.config.settings import (
    AdminConfig,
    AnswerLogConfig,
    CaptureConfig,
    ConnectionLimits,
    LogConfig,
    ProcessConfig,
    ServerConfig,
    SourceConfig,
    TraceConfig,
)
from serve.engine.reference.executor import ServedModel
from serve.metrics.registry import Metrics
from serve.metrics.server import MetricsServer
from tests.support.serve.live import server_of
from tests.support.serve.models import FailingModel
from tests.support.serve.repositories import add_version, break_version
from tests.support.serve.spawned import ROOT, spawned

NAN = math.nan


@pytest.mark.parametrize(
    ("make", "values", "text"),
    [
        pytest.param(ServerConfig, {"host": ""}, "host: got '', expected an address", id="host"),
        pytest.param(ServerConfig, {"port": 65536}, "port: got 65536, expected 0 to 65535", id="port"),
        pytest.param(ServerConfig, {"metrics_port": -1}, "metrics_port: got -1", id="metrics-port"),
        pytest.param(ServerConfig, {"http_port": 65536}, "http_port: got 65536", id="http-port"),
        pytest.param(ServerConfig, {"drain_timeout_s": 0.0}, "drain_timeout_s: got 0.0", id="drain"),
        pytest.param(ServerConfig, {"drain_timeout_s": NAN}, "drain_timeout_s: got nan", id="drain-nan"),
        pytest.param(ServerConfig, {"drain_timeout_s": math.inf}, "drain_timeout_s: got inf", id="drain-inf"),
        pytest.param(ServerConfig, {"polling_threads": -1}, "polling_threads: got -1", id="polling"),
        pytest.param(ServerConfig, {"poll_repository_s": -1.0}, "poll_repository_s: got -1.0", id="poll"),
        pytest.param(ServerConfig, {"poll_repository_s": NAN}, "poll_repository_s: got nan", id="poll-nan"),
        pytest.param(
            ModelSettings, {"deltas": "kafka://host/t"}, "deltas: got 'kafka://host/t'", id="deltas"
        ),
        pytest.param(ModelSettings, {"poll_deltas_s": 0.0}, "poll_deltas_s: got 0.0", id="poll-deltas"),
        pytest.param(ModelSettings, {"poll_deltas_s": NAN}, "poll_deltas_s: got nan", id="poll-deltas-nan"),
        pytest.param(
            ModelSettings, {"context_cache_bytes": -1}, "context_cache_bytes: got -1", id="context-cache"
        ),
        pytest.param(ModelSettings, {"num_executors": -1}, "num_executors: got -1", id="executors"),
        pytest.param(ModelSettings, {"cpus": (0, -1)}, r"cpus: got \[0, -1\]", id="cpus"),
        pytest.param(
            ModelSettings, {"cuda_graph_rows": (0, 8)}, r"cuda_graph_rows: got \[0, 8\]", id="graph-rows"
        ),
        pytest.param(
            ModelSettings, {"cuda_graph_ids_per_row": -1}, "cuda_graph_ids_per_row: got -1", id="graph-ids"
        ),
        pytest.param(ModelSettings, {"target": ""}, "target: got an empty text", id="target"),
        pytest.param(ConnectionLimits, {"max_message_bytes": 10}, "max_message_bytes: got 10", id="bytes"),
        pytest.param(
            ConnectionLimits, {"max_message_bytes": 2**31}, "expected at most 2147483647", id="int32"
        ),
        pytest.param(ConnectionLimits, {"max_connections": -1}, "max_connections: got -1", id="connections"),
        pytest.param(ConnectionLimits, {"max_stream_requests": 0}, "max_stream_requests: got 0", id="stream"),
        pytest.param(ConnectionLimits, {"keepalive_s": -1.0}, "keepalive_s: got -1.0", id="keepalive"),
        pytest.param(ConnectionLimits, {"max_header_bytes": 100}, "max_header_bytes: got 100", id="headers"),
        pytest.param(ConnectionLimits, {"max_resets_per_s": NAN}, "max_resets_per_s: got nan", id="resets"),
        pytest.param(ConnectionLimits, {"max_port_bytes": -1}, "max_port_bytes: got -1", id="port-bytes"),
        pytest.param(
            ConnectionLimits, {"max_connection_idle_s": NAN}, "max_connection_idle_s: got nan", id="idle"
        ),
        pytest.param(
            ConnectionLimits, {"max_connection_age_s": 1e9}, "max_connection_age_s: got 1000000", id="age"
        ),
        pytest.param(
            ConnectionLimits, {"max_connection_age_s": 1e-9}, "max_connection_age_s: got 1e-09", id="tiny"
        ),
        pytest.param(
            TraceConfig, {"endpoint": "collector:4317"}, "endpoint: got 'collector:4317'", id="endpoint"
        ),
        pytest.param(TraceConfig, {"endpoint": "http://c", "share": 2.0}, "share: got 2.0", id="trace-share"),
        pytest.param(
            AnswerLogConfig, {"destination": "d", "share": 2.0}, "share: got 2.0", id="answer-log-share"
        ),
        pytest.param(
            AnswerLogConfig,
            {"destination": "s3://bucket"},
            "destination: got 's3://bucket', expected a folder",
            id="answer-log-destination",
        ),
        pytest.param(
            AnswerLogConfig,
            {"destination": "d", "hash": ("user",)},
            "hash_key_file: got none",
            id="answer-log-key",
        ),
        pytest.param(
            AnswerLogConfig,
            {"destination": "d", "hash": ("user",), "leave_out": ("user",), "hash_key_file": Path("k")},
            "hash: got 'user', which leave_out names too",
            id="answer-log-both",
        ),
        pytest.param(CaptureConfig, {"path": Path("c"), "share": 0.0}, "share: got 0.0", id="capture-share"),
        pytest.param(
            CaptureConfig, {"path": Path("c"), "max_bytes": 0}, "max_bytes: got 0", id="capture-bytes"
        ),
        pytest.param(LogConfig, {"requests": "some"}, "requests: got 'some'", id="log"),
        pytest.param(AdminConfig, {"token_file": Path("t"), "port": -1}, "port: got -1", id="admin-port"),
        pytest.param(SourceConfig, {"models": ("a", "")}, "models: got an empty name", id="names"),
        pytest.param(
            SourceConfig, {"artifact": Path("a"), "models": ("m",)}, "beside an artifact", id="names-of-one"
        ),
        pytest.param(ProcessConfig, {"intra_op_threads": 0}, "intra_op_threads: got 0", id="threads"),
        pytest.param(ProcessConfig, {"switch_interval_us": 0}, "switch_interval_us: got 0", id="switch"),
    ],
)
def test_settings_out_of_range_are_refused(make: type[Any], values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**values)


@pytest.mark.parametrize(
    ("processors", "expected"), [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (16, 8), (64, 32), (96, 48)]
)
def test_polling_threads_go_by_the_processors(
    processors: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.base.machine.num_processors", lambda: processors)
    assert ServerConfig().num_polling_threads == expected
    assert ServerConfig(polling_threads=3).num_polling_threads == 3


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_glibc_takes_the_allocators_settings() -> None:
    assert tune_malloc()


def test_a_server_whose_model_cannot_warm_up_is_never_ready(model: ServedModel) -> None:
    async def scenario() -> None:
        server = server_of(FailingModel(model, bad_id=0))
        await server.start()
        try:
            with pytest.raises(RuntimeError, match="no version could be made ready of 'small': small 7: "):
                await server.wait_until_ready()
        finally:
            await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("break_it", [True, False], ids=["damaged", "whole"])
def test_a_damaged_model_is_the_end_of_a_server_of_it_alone(
    break_it: bool, artifact_path: Path, tmp_path: Path
) -> None:
    path = add_version(tmp_path, "small", "1", artifact_path)
    if break_it:
        break_version(path)
    arguments = ["--repository", str(tmp_path), "--port", "0", "--no-metrics", "--json"]
    command = [sys.executable, "-m", "serve.app.cli", *arguments]
    if break_it:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert (ended.returncode, ended.stdout.count("ready")) == (1, 0)
        assert ended.stderr.splitlines()[-1].startswith(
            "recsys-serve: no version could be made ready of 'small': small 1: "
        )
        return
    with spawned(command, tmp_path / "log") as server:
        server.process.terminate()
        assert server.finish()[0] == 0


def test_the_metrics_server_closes_twice() -> None:
    server = MetricsServer(Metrics(), "127.0.0.1", 0)
    server.close()
    server.close()
