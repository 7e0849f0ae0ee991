"""The pages: ``/`` with the models and a form, ``/docs``, and their source ``/openapi.json``.

They need nothing from elsewhere. Their policy permits the script and the style sheet whose hashes it names, and
requests to this server, so that no name that comes from a model can run or load anything.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from recsys.base.machine import package_version
from recsys.base.terminal import size_text
from recsys.inputs.signature import Signature
from recsys.pages import script, source_hash, style, templates
from serve.config.settings import ConnectionLimits
from serve.engine.interface import Servable
from serve.errors import ModelNotFoundError, NotReadyError
from serve.metrics.counters import ContextCacheTotals
from serve.models.status import ModelStatus, ModelVersionStatus
from serve.protocols.open_inference import output_datatype
from serve.rest.pages.guard import check_local
from serve.rest.pages.openapi import Model, document, operations
from serve.rest.pages.schemas import Json, ids_text, most_text
from serve.rest.query import query_number
from serve.rest.tensors_json import write_json
from serve.rpc.backend import Backend
from serve.rpc.open_inference import SERVER_NAME, ready_versions
from serve.threads import in_thread

_FOLDER = Path(__file__).parent
_TEMPLATES = templates(_FOLDER)
_STYLE, _SCRIPT = style(_FOLDER), script(_FOLDER)
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {source_hash(_SCRIPT)}",
        f"style-src {source_hash(_STYLE)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HEADINGS = ["input", "plain JSON", "tensors", "IDs or texts", "tables"]
_EXAMPLE = "example"


class Pages:
    """Handlers of the pages.

    Args:
        backend: the server.
        limits: limits of the port; shown.
        is_local: whether the port listens on loopback, so that only this machine's addresses lead to it.
    """

    def __init__(self, backend: Backend, limits: ConnectionLimits, *, is_local: bool) -> None:
        self._backend = backend
        self._limits = limits
        self._is_local = is_local

    def routes(self) -> list[web.RouteDef]:
        """Return the addresses."""
        return [
            web.get("/", self.overview),
            web.get("/docs", self.docs),
            web.get("/openapi.json", self.openapi),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        """Answer with the models and the form."""
        self._check(request)
        statuses = self._backend.manager.statuses()
        return _page(
            "overview.html",
            is_ready=self._backend.manager.is_ready(),
            engine=self._backend.engine.kind,
            release=package_version(SERVER_NAME) or "unknown",
            models=[_shown(status) for status in statuses],
            num_ready=sum(bool(status.serving) for status in statuses),
        )

    async def docs(self, request: web.Request) -> web.Response:
        """Answer with the description for people."""
        self._check(request)
        models, origin = self._models(), f"{request.scheme}://{request.host}"
        # In a thread: it takes long for models with many inputs.
        return await in_thread(lambda: _docs(models, origin, self._limits), "describe")

    async def openapi(self, request: web.Request) -> web.Response:
        """Answer with the description for programs; ``?example=N`` draws other examples."""
        self._check(request)
        seed = query_number(request, _EXAMPLE) or 0
        models = self._models()
        data = await in_thread(lambda: write_json(document(models, seed)), "describe")
        return web.Response(body=data, content_type="application/json", headers=_HEADERS)

    def _check(self, request: web.Request) -> None:
        if self._is_local:
            check_local(request)

    def _models(self) -> list[Model]:
        """Return the models that answer."""
        found = []
        for status in self._backend.manager.statuses():
            versions = {}
            for version in reversed(ready_versions(status)):
                try:
                    versions[version] = self._backend.servable(status.model, version)
                except (ModelNotFoundError, NotReadyError):
                    continue
            if versions:
                serving = versions.get(status.serving)
                found.append(Model(name=status.model, serving=serving, versions=versions))
        return found


def _page(template: str, **values: Any) -> web.Response:
    text = _TEMPLATES.get_template(template).render(style=_STYLE, script=_SCRIPT, **values)
    return web.Response(text=text, content_type="text/html", headers=_HEADERS)


def _docs(models: Sequence[Model], origin: str, limits: ConnectionLimits) -> web.Response:
    described = document(models)
    sections = {
        tag["name"]: [_operation(origin, *one) for one in operations(described, tag["name"])]
        for tag in described["tags"]
    }
    responses = described["components"]["responses"]
    return _page(
        "docs.html",
        signatures=[shown for model in models for shown in _signatures(model)],
        ids_text=ids_text,
        most_text=most_text,
        datatype_of=output_datatype,
        sections=sections.items(),
        errors=[(code[1:], one["description"]) for code, one in responses.items()],
        max_json=size_text(limits.max_json_bytes),
    )


def _shown(status: ModelStatus) -> Json:
    """Return the template's data for a model."""
    return {
        "name": status.model,
        "is_ready": bool(status.serving),
        "versions": [
            {
                "name": version.version,
                "state": version.state.value,
                "role": _role(status, version),
                "tables": size_text(version.table_bytes) if version.table_bytes else "",
                "digest": version.digest,
                "deltas": ", ".join(version.deltas),
                "reason": version.reason,
                "contexts": _contexts(version.context_cache),
            }
            for version in reversed(status.versions)
        ],
    }


def _contexts(cache: ContextCacheTotals) -> str:
    """Return what a context cache holds and how often it helped; empty if it was never asked."""
    asked = cache.hits + cache.misses
    if not asked:
        return ""
    held = f"{cache.entries:,} context{'' if cache.entries == 1 else 's'}"
    return f"{held} in {size_text(cache.bytes)}; it had {cache.hits / asked:.0%} of those asked for"


def _role(status: ModelStatus, version: ModelVersionStatus) -> str:
    """Return what the routing does with a version."""
    routing = status.routing
    roles = []
    if version.version == status.serving:
        roles.append("serves")
    if version.version == routing.canary:
        by = f" by {routing.canary_key}" if routing.canary_key else ""
        roles.append(f"canary, {routing.canary_percent:g} %{by}")
    if version.version == routing.shadow:
        roles.append(f"shadow, {routing.shadow_percent:g} %")
    return "; ".join(roles)


def _signatures(model: Model) -> list[Json]:
    """Return the template's data for each signature that versions of a model have, that which serves first."""
    groups: list[tuple[Signature, list[Servable]]] = []
    for servable in sorted(model.versions.values(), key=lambda servable: servable is not model.serving):
        group = next((found for signature, found in groups if signature == servable.signature), None)
        if group is None:
            groups.append((servable.signature, [servable]))
        else:
            group.append(servable)
    shown = []
    for signature, servables in groups:
        names = ", ".join(servable.info.version for servable in servables)
        shown.append(
            {
                "title": f"{model.name}, version{'s' if len(servables) > 1 else ''} {names}",
                "serves": model.serving in servables,
                "signature": signature,
                "headings": [*_HEADINGS, "ranking"] if signature.context else _HEADINGS,
            }
        )
    return shown


def _operation(origin: str, method: str, path: str, operation: Json) -> Json:
    """Return the template's data for an operation."""
    examples = []
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for example in content.get("examples", {}).values():
        body = json.dumps(example["value"])
        command = (
            f"curl -s {shlex.quote(origin + path)} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
        )
        examples.append((example["summary"], command))
    if method == "get":
        examples.append(("", f"curl -s {shlex.quote(origin + path)}"))
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation["summary"],
        "parameters": operation.get("parameters", []),
        "examples": examples,
    }
