"""The settings that Python passes to the native engine, each written once: here, or in the classes imported here.

They cross the binding as JSON. ``python -m serve.engine.native_settings cpp_client`` writes the same classes
as headers, with names, types, defaults, bounds and descriptions.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from serve.config.bounds import bounded, bounds_of
from serve.config.models import BatchLimits
from serve.config.options import descriptions
from serve.config.settings import ConnectionLimits
from serve.engine.interface import PortSettings, SubmitOptions


@dataclass(frozen=True, kw_only=True)
class VersionSettings:
    """How one version of a model is served.

    Attributes:
        name: the model's name in requests.
        version: the version's name in requests.
        target: the artifact's target; not set for the first that this machine has the devices for.
        verify_checksums: whether the rows' checksums are compared while they are loaded.
        copy_rows: whether the rows are copied to memory instead of mapped.
        lock_rows: whether their memory is locked.
        numa: NUMA nodes of copied rows; not set for the system's choice.
        random_access: whether mapped rows are read in single pages.
        allow_non_finite: whether NaN and infinities are accepted in dense inputs and weights.
        context_cache_bytes: memory for what its program computes of contexts alone; 0 for none.
        rows: nodes with the rows of large tables, HOST:PORT with commas between; empty for none.
        rows_replicas: a replica of each, in the same order; empty for none.
        rows_over_bytes: tables with more bytes of rows are read there.
        rows_cache_bytes: memory for such rows that are read often.
        rows_deadline_ms: milliseconds that a batch waits for its rows.
        rows_hedge_ms: milliseconds after which replicas are asked too.
        rows_zero: tables whose rows count as zeros where they cannot be read.
        limits: limits on requests, batches and the queue.
        num_executors: how many batches of the model may run concurrently.
        cpus: the processors that its executors may use; empty for all.
    """

    name: str = ""
    version: str = ""
    target: str | None = None
    verify_checksums: bool = True
    copy_rows: bool = False
    lock_rows: bool = False
    numa: str | None = None
    random_access: bool = False
    allow_non_finite: bool = False
    context_cache_bytes: int = bounded(0, 0)
    rows: str = ""
    rows_replicas: str = ""
    rows_over_bytes: int = bounded(1 << 30, 0)
    rows_cache_bytes: int = bounded(256 << 20, 0)
    rows_deadline_ms: int = bounded(20, 1)
    rows_hedge_ms: int = bounded(5, 1)
    rows_zero: tuple[str, ...] = ()
    limits: BatchLimits = field(default_factory=BatchLimits)
    num_executors: int = bounded(1, 1)
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RingLimits:
    """Limits of a ring of events; further events are dropped and counted.

    Attributes:
        max_entries: number of events.
        max_bytes: their bytes.
    """

    max_entries: int = bounded(4096, 1)
    max_bytes: int = bounded(16 << 20, 1)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What the engine records for its owner, and how many records may be pending.

    Attributes:
        ended: which ended requests leave a record: ``none``, ``errors`` or ``all``.
        trace_share: share of the requests that are traced if the client does not decide; not set for no traces.
        capture_share: share of the accepted requests that are captured.
        answered_share: share of the answered requests with a request ID whose answers are recorded: by the ID's hash.
        inputs_share: share of the answered requests whose answers are recorded with their inputs: by the request
            ID's hash where there is one.
        num_processors: how many batches of all models may run concurrently; 0 for the number of processors in
            the affinity mask.
        ended_ring: records of ended requests.
        captured_ring: captured requests.
        answered_bytes: bytes of the records of answers.
        shadow_ring: outputs of shadow versions.
        log_ring: lines of the log.
        call_ring: calls that wait for an answer of the owner; further ones are refused.
    """

    ended: str = "errors"
    trace_share: float | None = field(default=None, metadata=bounded(0, 0, 1).metadata)
    capture_share: float = bounded(0.0, 0, 1)
    answered_share: float = bounded(0.0, 0, 1)
    inputs_share: float = bounded(0.0, 0, 1)
    num_processors: int = bounded(0, 0)
    ended_ring: RingLimits = RingLimits(max_entries=8192)
    captured_ring: RingLimits = RingLimits(max_entries=1024, max_bytes=64 << 20)
    answered_bytes: int = bounded(64 << 20, 1)
    shadow_ring: RingLimits = RingLimits(max_entries=1024, max_bytes=64 << 20)
    log_ring: RingLimits = RingLimits(max_bytes=4 << 20)
    call_ring: RingLimits = RingLimits(max_bytes=256 << 20)


@dataclass(frozen=True, kw_only=True)
class RouteSpec:
    """How the requests of one model are routed.

    Attributes:
        model: the model's name.
        serving: answers requests that name no version, once it is loaded; empty for none.
        canary: answers a share of them; empty for none.
        canary_share: that share, 0 to 1.
        key_feature: the sparse input whose first ID decides who gets the canary; empty to draw for each request.
        key_header: the header whose value decides it.
        shadow: computes a share of them in addition to the answering version; empty for none.
        shadow_share: that share, 0 to 1.
        loading: versions that will be ready soon.
        is_unloaded: whether an operator has unloaded the model.
        is_only: whether requests that name no model use this one.
    """

    model: str = ""
    serving: str = ""
    canary: str = ""
    canary_share: float = bounded(0.0, 0, 1)
    key_feature: str = ""
    key_header: str = ""
    shadow: str = ""
    shadow_share: float = bounded(0.0, 0, 1)
    loading: tuple[str, ...] = ()
    is_unloaded: bool = False
    is_only: bool = False


# Fields that only Python reads.
_PYTHON_ONLY = {"max_json_bytes", "tls"}
_HEADERS = {
    "port/limits.h": (ConnectionLimits,),
    "engine/settings/settings.h": (
        BatchLimits, PortSettings, VersionSettings, RingLimits, EngineSettings, RouteSpec, SubmitOptions,
    ),
}  # fmt: skip
_TYPES = {
    bool: "bool",
    int: "std::int64_t",
    float: "double",
    str: "std::string",
    str | None: "std::optional<std::string>",
    float | None: "std::optional<double>",
    tuple[int, ...]: "std::vector<std::int64_t>",
    tuple[str, ...]: "std::set<std::string>",
    Mapping[str, str]: "std::map<std::string, std::string>",
}
_WIDTH = 100


def as_json(settings: Any, kind: type | None = None) -> str:
    """Return settings as the native engine reads them.

    Args:
        settings: An instance of one of the classes of this file.
        kind: The class whose fields are written, if the settings are of a class derived from it.
    """
    return json.dumps(_values(settings, kind or type(settings)))


def _values(settings: Any, kind: type) -> dict[str, Any]:
    values = {f.name: getattr(settings, f.name) for f in _native_fields(kind)}
    return {k: _values(v, type(v)) if dataclasses.is_dataclass(v) else v for k, v in values.items()}


def _native_fields(kind: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if f.name not in _PYTHON_ONLY]


def headers() -> dict[str, str]:
    """Return the C++ headers with the settings, by path in ``cpp_client``."""
    return {path: _header(path, kinds) for path, kinds in _HEADERS.items()}


def _header(path: str, kinds: tuple[type, ...]) -> str:
    structs = [line for kind in kinds for line in _struct(kind)]
    text = "\n".join(structs)
    used = sorted({*re.findall(r"std::(map|optional|set|string|vector)\b", text), "cstdint"})
    guard = "RECSYS_" + re.sub(r"\W", "_", path).upper() + "_"
    ours = ['#include "base/bounds.h"']
    if ConnectionLimits not in kinds:
        ours.append('#include "port/limits.h"')
    lines = [
        f"#ifndef {guard}", f"#define {guard}", "",
        "// Written by python -m serve.engine.native_settings: change the settings there.", "",
        *(f"#include <{name}>" for name in sorted(used)), "", *ours, "", "namespace recsys {", "",
        *structs, "}  // namespace recsys", "", f"#endif  // {guard}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _struct(kind: type) -> Iterator[str]:
    types, about = get_type_hints(kind), descriptions(kind)
    fields = _native_fields(kind)
    yield from _comment((kind.__doc__ or "").partition("\n")[0], "")
    yield f"struct {kind.__name__} {{"
    for f in fields:
        yield from _comment(about[f.name].replace("``", '"') + ".", "  ")
        default = _default(f)
        yield f"  {_TYPES.get(types[f.name]) or types[f.name].__name__} {f.name}{default};"
    yield from [
        "",
        "  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.",
        "  void Check() const;",
        "  /// Calls `visit` with the name, the value and the bounds of each field.",
        "  template <typename Self, typename Visit>",
        "  static void ForEach(Self& self, Visit visit) {",
        *(f'    visit("{f.name}", self.{f.name}, {_bounds(f)});' for f in fields),
        "  }",
        "};",
        "",
    ]


def _comment(text: str, indent: str) -> list[str]:
    text = text[0].upper() + text[1:]
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{indent}/// ",
        subsequent_indent=f"{indent}/// ",
        break_on_hyphens=False,
    )


def _default(f: dataclasses.Field[Any]) -> str:
    default = f.default
    if isinstance(default, RingLimits):
        return f"{{{default.max_entries}, {default.max_bytes}}}"
    if default in (dataclasses.MISSING, None, "", ()):
        return ""
    return " = " + ('"' + default + '"' if isinstance(default, str) else str(default).lower())


def _bounds(f: dataclasses.Field[Any]) -> str:
    bounds = bounds_of(f)
    if bounds is None:
        return "Bounds()"
    most = "kUnbounded" if bounds.most == float("inf") else str(bounds.most)
    return f"Bounds{{{bounds.least}, {most}" + (", true}" if bounds.or_zero else "}")


if __name__ == "__main__":
    for header, text in headers().items():
        (Path(sys.argv[1]) / header).write_text(text)
