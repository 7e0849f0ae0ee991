"""Checks and report of ``recsys-serve --check-config``: everything that can be checked without serving."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import check_sizes, read_manifest
from recsys.cli import near_misses, whole_table
from recsys.errors import ArtifactError
from recsys.machine import install_command
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig, Settings
from serve.config.sources import Effective
from serve.models.repository import ModelSource, Repository
from serve.models.routing import key_error
from serve.models.routing_file import RoutingFile, RoutingFileError
from serve.net.auth import read_token
from serve.net.files import SecurityError
from serve.net.limits import missing_open_files, num_ports
from serve.net.sockets import is_loopback
from serve.net.tls import read_tls
from serve.observe.capture_file import CaptureError, CaptureReader

# Width in columns when the output is not a terminal.
_PIPE_WIDTH = 150


@dataclass(frozen=True)
class Finding:
    """Something that an operator should know.

    Attributes:
        is_error: whether it keeps the server from starting or from serving.
        text: names the setting, its value, and what is expected.
    """

    is_error: bool
    text: str


def check(settings: Settings, source: ModelSource) -> list[Finding]:
    """Check all files, ports and processors that the settings name. Loads nothing and opens no port."""
    config = settings.server
    return [
        *(Finding(True, text) for text in missing_packages(config)),
        *_check_source(settings, source),
        *_check_ports(config),
        *_check_security(config),
        *_check_warm_ups(config),
        *_check_deltas(config),
        *_check_capture(config),
        *_check_machine(config),
    ]


def check_start(settings: Settings, source: ModelSource) -> list[str]:
    """Return the errors that are cheap to find and that starting up would show late or not at all."""
    config = settings.server
    findings = (
        *_check_names(settings, source),
        *_check_ports(config),
        *_check_capture(config),
        *_check_cpus(config),
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


def print_report(effective: Effective, findings: list[Finding], *, as_json: bool) -> None:
    """Print the effective settings, each with its origin, and the findings."""
    errors = [finding.text for finding in findings if finding.is_error]
    warnings = [finding.text for finding in findings if not finding.is_error]
    rows = effective.rows()
    if as_json:
        values = {key: {"value": _plain(value), "from": origin} for key, value, origin in rows}
        print(json.dumps({"ok": not errors, "settings": values, "errors": errors, "warnings": warnings}))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    cells = [(key, _text(value), origin) for key, value, origin in rows]
    console.print(whole_table("settings", ("key", "value", "from"), cells, left={0, 1, 2}))
    for text in warnings:
        console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)
    for text in errors:
        print(f"recsys-serve: {text}", file=sys.stderr)
    if not errors:
        console.print("the settings can be used", highlight=False)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_source(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    yield from _check_names(settings, source)
    try:
        versions = {name: source.versions(name) for name in source.names()}
    except OSError:
        return  # reported above
    yield from _check_models(settings.server, source, versions)


def _check_names(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    root, wanted = settings.source.repository, settings.source.models
    try:
        there = Repository(root).names() if root is not None and wanted else source.names()
    except OSError as error:
        yield Finding(True, f"source.repository: cannot read {str(root)!r}: {error.strerror}")
        return
    if not there:
        yield Finding(True, "source.repository: holds no model, expected at least one folder of versions")
    for name in wanted:
        if name not in there:
            yield Finding(True, f"source.models: got {name!r}, which is not there{near_misses(name, there)}")


def _check_models(
    config: ServerConfig, source: ModelSource, versions_of: Mapping[str, list[str]]
) -> Iterator[Finding]:
    for name in config.models:
        if name not in versions_of:
            yield Finding(False, f"models.{name}: there is no such model{near_misses(name, versions_of)}")
    for name, versions in versions_of.items():
        if not versions:
            yield Finding(True, f"{name}: has no version, expected at least one")
        yield from _check_routing(name, config.settings_of(name), versions)
        for version in versions:
            what = f"{name}, version {version}"
            try:
                path = source.path(name, version)
                manifest = read_manifest(path)
            except ArtifactError as error:
                yield Finding(True, f"{what}: {error}")
                continue
            yield from _check_target(what, config.settings_of(name), manifest)
            wrong = key_error(config.settings_of(name).routing.key_feature, manifest.signature)
            if wrong:
                yield Finding(True, f"{what}: {wrong}")
            try:
                check_sizes(path, manifest)
            except ArtifactError as error:
                yield Finding(True, f"{what}: {error}")


def _check_routing(name: str, settings: ModelSettings, versions: list[str]) -> Iterator[Finding]:
    routing = settings.routing
    for key in ("serve", "canary", "shadow"):
        version = getattr(routing, key)
        if version and version != "latest" and version not in versions:
            newest = ", ".join(versions[-5:])
            yield Finding(
                True, f"{name}: routing.{key}: got {version!r}, expected one of its versions: {newest}"
            )


def _check_target(what: str, settings: ModelSettings, manifest: Manifest) -> Iterator[Finding]:
    names = [target.name for target in manifest.targets]
    if settings.target is not None and settings.target not in names:
        yield Finding(True, f"{what}: target: got {settings.target!r}, expected one of {', '.join(names)}")


def _check_ports(config: ServerConfig) -> Iterator[Finding]:
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


def _check_security(config: ServerConfig) -> Iterator[Finding]:
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
    if config.tls is not None:
        return
    if not is_loopback(config.host):
        yield Finding(False, f"host: {config.host} is open to the network without TLS")
    if config.admin is not None and not is_loopback(config.admin.host):
        yield Finding(False, f"admin.host: the token crosses the network to {config.admin.host} without TLS")


def _check_warm_ups(config: ServerConfig) -> Iterator[Finding]:
    for key, settings in _models_of_their_own(config, "warm_up"):
        path = settings.warm_up
        if path is None:
            continue
        if not (path.is_file() and os.access(path, os.R_OK)):
            yield Finding(True, f"{key}: got {str(path)!r}, expected a file that can be read")
            continue
        try:
            with CaptureReader(path):
                pass  # Reads the header.
        except CaptureError as error:
            yield Finding(True, f"{key}: {str(path)!r}: {error}")


def _check_deltas(config: ServerConfig) -> Iterator[Finding]:
    for key, settings in _models_of_their_own(config, "deltas"):
        path = settings.deltas
        if path is None:
            continue
        if not path.exists():
            yield Finding(False, f"{key}: there is nothing at {str(path)!r} yet")
        elif not (path.is_dir() and os.access(path, os.R_OK | os.X_OK)):
            yield Finding(True, f"{key}: got {str(path)!r}, expected a folder that can be read")


def _models_of_their_own(config: ServerConfig, field: str) -> Iterator[tuple[str, ModelSettings]]:
    """Yield the defaults and the models whose ``field`` differs from them, each with the setting's key."""
    yield f"defaults.{field}", config.defaults
    for name, settings in config.models.items():
        if getattr(settings, field) != getattr(config.defaults, field):
            yield f"models.{name}.{field}", settings


def _check_capture(config: ServerConfig) -> Iterator[Finding]:
    if config.capture is not None:
        path = config.capture.path
        folder = path.absolute().parent
        if path.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK)):
            yield Finding(
                True, f"capture.path: got {str(path)!r}, expected a file in a folder that can be written"
            )


def _check_cpus(config: ServerConfig) -> Iterator[Finding]:
    there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    for key, settings in _models_of_their_own(config, "cpus"):
        missing = sorted(set(settings.cpus) - there)
        if missing:
            yield Finding(True, f"{key}: got {missing}, expected some of this process's own: {sorted(there)}")


def _check_machine(config: ServerConfig) -> Iterator[Finding]:
    yield from _check_cpus(config)
    ports = num_ports(config)
    left = missing_open_files(config.connections, ports)
    if left:
        yield Finding(
            False,
            f"connections.max_connections: got {config.connections.max_connections} on each of {ports} ports, {left} "
            "more in all than this process may have open files for (ulimit -n)",
        )
