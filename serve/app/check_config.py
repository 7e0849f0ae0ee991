"""Checks and report of ``recsys-serve --check-config``: everything that can be checked without serving."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from recsys.artifact.load import choose_target
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import check_sizes
from recsys.artifact.programs import has_running_programs
from recsys.base.cli import near_misses
from recsys.base.remote import RemoteError
from recsys.base.terminal import whole_table
from recsys.errors import ArtifactError, TargetError
from recsys.streams.address import missing_for, parse_stream_address
from recsys.streams.opening import open_source
from serve.app.check_start import (
    Finding,
    check_answer_log,
    check_capture,
    check_cpus,
    check_names,
    check_ports,
    check_security,
    check_streams,
    missing_packages,
    models_of_their_own,
)
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig, Settings
from serve.config.sources import Effective
from serve.models.repository import ModelSource
from serve.models.routing import key_error
from serve.net.limits import missing_open_files, num_ports
from serve.net.sockets import is_loopback
from serve.observe.capture_file import CaptureError, CaptureReader

# Width in columns when the output is not a terminal.
_PIPE_WIDTH = 150


def check(settings: Settings, source: ModelSource) -> list[Finding]:
    """Check all files, ports and processors that the settings name. Loads nothing and opens no port."""
    config = settings.server
    return [
        *(Finding(True, text) for text in missing_packages(config)),
        *_check_source(settings, source),
        *check_ports(config),
        *check_security(config),
        *_check_exposure(config),
        *_check_warm_ups(config),
        *check_streams(config),
        *_check_deltas(config),
        *check_capture(config),
        *check_answer_log(config),
        *_check_machine(config),
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
    try:
        yield from check_names(settings, source)
        versions = {name: source.versions(name) for name in source.names()}
    except RemoteError as error:
        yield Finding(True, f"source: {error}")
        return
    except OSError:
        return  # reported above
    yield from _check_models(settings.server, source, versions)


def _check_models(
    config: ServerConfig, source: ModelSource, versions_of: Mapping[str, list[str]]
) -> Iterator[Finding]:
    for name in config.models:
        if name not in versions_of:
            yield Finding(False, f"models.{name}: no such model{near_misses(name, versions_of)}")
    for name, versions in versions_of.items():
        if not versions:
            yield Finding(True, f"{name}: has no version, expected at least one")
        yield from _check_routing(name, config.settings_of(name), versions)
        for version in versions:
            what = f"{name}, version {version}"
            try:
                manifest = Manifest.loads(source.manifest_bytes(name, version))
            except (ArtifactError, OSError) as error:
                yield Finding(True, f"{what}: {error}")
                continue
            yield from _check_target(what, config.settings_of(name), manifest)
            wrong = key_error(config.settings_of(name).routing.key_feature, manifest.signature)
            if wrong:
                yield Finding(True, f"{what}: {wrong}")
            try:
                check_sizes({file: size for file, size, *_ in source.files(name, version)}, manifest)
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
        return
    try:
        has_running_programs(choose_target(manifest, settings.target))
    except TargetError as error:
        yield Finding(True, f"{what}: {error}")


def _check_exposure(config: ServerConfig) -> Iterator[Finding]:
    if config.tls is not None:
        return
    if not is_loopback(config.host):
        yield Finding(False, f"host: {config.host} is open to the network without TLS")
    if config.admin is not None and not is_loopback(config.admin.host):
        yield Finding(False, f"admin.host: the token crosses the network to {config.admin.host} without TLS")


def _check_warm_ups(config: ServerConfig) -> Iterator[Finding]:
    for key, settings in models_of_their_own(config, "warm_up"):
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
    for key, settings in models_of_their_own(config, "deltas"):
        if settings.deltas is None or missing_for(parse_stream_address(settings.deltas)):
            continue
        source = open_source(settings.deltas, settings.delta_cache)
        try:
            remark = source.check()
        except OSError as error:
            yield Finding(True, f"{key}: {error}")
        else:
            if remark:
                yield Finding(False, f"{key}: {remark}")
        finally:
            source.close()


def _check_machine(config: ServerConfig) -> Iterator[Finding]:
    yield from check_cpus(config)
    ports = num_ports(config)
    left = missing_open_files(config.connections, ports)
    if left:
        yield Finding(
            False,
            f"connections.max_connections: got {config.connections.max_connections} on each of {ports} ports, {left} "
            "more in all than this process may have open files for (ulimit -n)",
        )
