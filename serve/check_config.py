"""What ``recsys-serve --check-config`` finds and prints: everything that can be known without serving."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from recsys.artifact import read_manifest
from recsys.errors import ArtifactError
from recsys.manifest import Manifest
from recsys.terminal import whole_table
from serve.config import ModelSettings, ServerConfig, Settings
from serve.config_file import Effective
from serve.connections import missing_open_files, num_ports
from serve.options import near_misses
from serve.repository import ModelSource, Repository
from serve.security import SecurityError, read_tls, read_token

# Columns where there is no terminal to ask.
_PIPE_WIDTH = 150


@dataclass(frozen=True)
class Finding:
    """Something that an operator should know.

    Attributes:
        is_error: whether the server would not start, or not serve, with it.
        text: names the setting, what it is, and what it should be.
    """

    is_error: bool
    text: str


def check(settings: Settings, source: ModelSource) -> list[Finding]:
    """Look at all files, ports and processors that the settings name. Nothing is loaded, no port is opened."""
    config = settings.server
    return [
        *(Finding(True, text) for text in missing_packages(config)),
        *_check_source(settings, source),
        *_check_ports(config),
        *_check_security(config),
        *_check_files(config),
        *_check_machine(config),
    ]


def missing_packages(config: ServerConfig) -> list[str]:
    """What the settings ask for and is not installed; each says how to install it."""
    wanted = [("http_port", "aiohttp", "rest")] if config.http_port is not None else []
    if config.trace is not None:
        wanted.append(("trace", "opentelemetry", "otel"))
    return [
        f"{key}: the package {package} is missing; install the extra: pip install 'recsys-serving[{extra}]'"
        for key, package, extra in wanted
        if importlib.util.find_spec(package) is None
    ]


def print_report(effective: Effective, findings: list[Finding], *, as_json: bool) -> None:
    """The settings that hold, each with where it came from, and what was found."""
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
    root = settings.source.repository
    try:
        names = source.names()
        versions = {name: source.versions(name) for name in names}
        there = names if root is None else Repository(root).names()
    except OSError as error:
        yield Finding(True, f"source.repository: cannot read {str(root)!r}: {error.strerror}")
        return
    if not there:
        yield Finding(True, "source.repository: holds no model, expected at least one folder of versions")
    for name in settings.source.models:
        if name not in there:
            yield Finding(True, f"source.models: got {name!r}, which is not there{near_misses(name, there)}")
    yield from _check_models(settings.server, source, versions)


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
            try:
                manifest = read_manifest(source.path(name, version))
            except ArtifactError as error:
                yield Finding(True, f"{name}, version {version}: {error}")
                continue
            yield from _check_target(f"{name}, version {version}", config.settings_of(name), manifest)


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


def _check_security(config: ServerConfig) -> Iterator[Finding]:
    try:
        if config.tls is not None:
            read_tls(config.tls)
        if config.admin is not None:
            read_token(config.admin.token_file)
    except SecurityError as error:
        yield Finding(True, str(error))
    if config.tls is not None:
        return
    if not _is_loopback(config.host):
        yield Finding(False, f"host: {config.host} is open to the network without TLS")
    if config.admin is not None and not _is_loopback(config.admin.host):
        yield Finding(False, f"admin.host: the token crosses the network to {config.admin.host} without TLS")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_files(config: ServerConfig) -> Iterator[Finding]:
    warm_ups = {"defaults.warm_up": config.defaults.warm_up}
    warm_ups |= {f"models.{name}.warm_up": settings.warm_up for name, settings in config.models.items()}
    for key, path in warm_ups.items():
        if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
            yield Finding(True, f"{key}: got {str(path)!r}, expected a file that can be read")
    if config.capture is not None:
        path = config.capture.path
        folder = path.absolute().parent
        if path.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK)):
            yield Finding(
                True, f"capture.path: got {str(path)!r}, expected a file in a folder that can be written"
            )


def _check_machine(config: ServerConfig) -> Iterator[Finding]:
    there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    wanted = {"defaults.cpus": config.defaults.cpus}
    wanted |= {f"models.{name}.cpus": settings.cpus for name, settings in config.models.items()}
    for key, cpus in wanted.items():
        missing = sorted(set(cpus) - there)
        if missing:
            yield Finding(True, f"{key}: got {missing}, expected some of this process's own: {sorted(there)}")
    ports = num_ports(config)
    left = missing_open_files(config.connections, ports)
    if left:
        yield Finding(
            False,
            f"connections.max_connections: got {config.connections.max_connections} on each of {ports} ports, {left} "
            "more in all than this process may have open files for (ulimit -n)",
        )
