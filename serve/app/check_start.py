"""Checks before a start, which import no torch: a start that cannot be ends at once."""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recsys.base.cli import near_misses
from recsys.base.machine import install_command
from recsys.base.remote import RemoteError
from recsys.options.kinds import ConfigError
from recsys.streams.address import missing_for, parse_stream_address
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig, Settings
from serve.models.repository import ModelSource
from serve.models.routing_file import RoutingFile, RoutingFileError
from serve.net.auth import read_token
from serve.net.files import SecurityError
from serve.net.tls import read_tls
from serve.observe.answers.key import read_key


class StartError(RuntimeError):
    """The server cannot start; the message says why.

    Args:
        text: the message.
        exit_code: 2 where a setting, or a file that it names, is wrong; else 1.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Finding:
    """Something that an operator should know.

    Attributes:
        is_error: whether it keeps the server from starting or from serving.
        text: names the setting, its value, and what is expected.
    """

    is_error: bool
    text: str


def check_start(settings: Settings, source: ModelSource) -> list[str]:
    """Return the errors that are cheap to find, before torch is imported and models are loaded.

    Raises:
        RemoteError: the store of the models cannot be asked.
    """
    config = settings.server
    findings = (
        *(() if source.is_single else check_names(settings, source)),
        *check_ports(config),
        *check_security(config),
        *check_capture(config),
        *check_answer_log(config),
        *check_cpus(config),
        *check_streams(config),
    )
    return [finding.text for finding in findings if finding.is_error]


def missing_packages(config: ServerConfig) -> list[str]:
    """Return the missing packages that the settings need, each with how to install it."""
    wanted = [("http_port", "aiohttp", "rest")] if config.http_port is not None else []
    if config.trace is not None:
        wanted.append(("trace", "opentelemetry", "otel"))
    return [
        f"{key}: the package {package} is missing: {install_command(extra=extra)}"
        for key, package, extra in wanted
        if importlib.util.find_spec(package) is None
    ]


def check_streams(config: ServerConfig) -> Iterator[Finding]:
    """Yield the streams of deltas, and the topic of labels, for which a package is missing."""
    for key, settings in models_of_their_own(config, "deltas"):
        missing = None if settings.deltas is None else missing_for(parse_stream_address(settings.deltas))
        if missing is not None:
            yield Finding(True, f"{key}: {missing}")
    topic = None if config.quality is None else config.quality.topic
    missing = None if topic is None else missing_for(topic)
    if missing is not None:
        yield Finding(True, f"quality.labels: {missing}")


def check_names(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    """Yield what is wrong with the models that the settings name.

    Raises:
        RemoteError: their store cannot be asked.
    """
    root, wanted = settings.source.repository, settings.source.models
    try:
        there = source.all_names()
    except RemoteError:
        raise
    except OSError as error:
        yield Finding(True, f"source.repository: cannot read {str(root)!r}: {error.strerror}")
        return
    if not there:
        yield Finding(True, "source.repository: holds no model, expected at least one folder of versions")
    for name in wanted:
        if name not in there:
            yield Finding(True, f"source.models: got {name!r}, which is not there{near_misses(name, there)}")


def check_ports(config: ServerConfig) -> Iterator[Finding]:
    """Yield what is wrong with the ports."""
    ports = {"port": config.port, "metrics_port": config.metrics_port, "http_port": config.http_port}
    if config.admin is not None:
        ports["admin.port"] = config.admin.port
    keys: dict[int, list[str]] = defaultdict(list)
    for key, port in ports.items():
        if port:
            keys[port].append(key)
    for port, same in keys.items():
        if len(same) > 1:
            yield Finding(True, f"{' and '.join(same)}: got {port} for each, expected ports that differ")
    if config.rest.pages and config.http_port is None:
        yield Finding(False, "rest.pages: got true without http_port: there is no port to serve them on")


def check_security(config: ServerConfig) -> Iterator[Finding]:
    """Yield what is wrong with certificates, token and routing file."""
    try:
        if config.tls is not None:
            read_tls(config.tls)
    except SecurityError as error:
        yield Finding(True, str(error))
    try:
        if config.admin is not None:
            read_token(config.admin.token_file)
            RoutingFile(config.admin.routing_file)
    except (SecurityError, RoutingFileError) as error:
        yield Finding(True, str(error))


def check_capture(config: ServerConfig) -> Iterator[Finding]:
    """Yield what is wrong with the file of captured requests."""
    if config.capture is not None:
        path = config.capture.path
        folder = path.absolute().parent
        if path.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK)):
            yield Finding(
                True, f"capture.path: got {str(path)!r}, expected a file in a folder that can be written"
            )


def check_answer_log(config: ServerConfig) -> Iterator[Finding]:
    """Yield what is wrong with the folder and the key of the answer log."""
    log = config.answer_log
    if log is None:
        return
    topic = log.topic
    if topic is not None:
        missing = missing_for(topic)
        if missing is not None:
            yield Finding(True, f"answer_log.destination: {missing}")
    else:
        path = Path(log.destination).absolute()
        folder = next(one for one in (path, *path.parents) if one.exists())
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            yield Finding(
                True,
                f"answer_log.destination: got {log.destination!r}, expected a folder that can be written to",
            )
    if log.hash_key_file is not None:
        try:
            read_key(log.hash_key_file)
        except OSError as error:
            yield Finding(True, f"answer_log.hash_key_file: {log.hash_key_file}: {error.strerror}")
        except ConfigError as error:
            yield Finding(True, str(error))


def check_cpus(config: ServerConfig) -> Iterator[Finding]:
    """Yield processors that this process does not have."""
    there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    for key, settings in models_of_their_own(config, "cpus"):
        missing = sorted(set(settings.cpus) - there)
        if missing:
            yield Finding(True, f"{key}: got {missing}, expected some of this process's own: {sorted(there)}")


def models_of_their_own(config: ServerConfig, field: str) -> Iterator[tuple[str, ModelSettings]]:
    """Yield the defaults and the models whose ``field`` differs from them, each with the setting's key."""
    yield f"defaults.{field}", config.defaults
    for name, settings in config.models.items():
        if getattr(settings, field) != getattr(config.defaults, field):
            yield f"models.{name}.{field}", settings
