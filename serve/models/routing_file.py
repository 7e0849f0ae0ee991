"""The file that keeps the routings that operators set, so that they survive a restart.

Each routing is kept with the one that the settings gave when it was set. While the settings still give that one, the
operators' routing holds; once the settings have changed, theirs does.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.base.files import replacing
from serve.config.models import Routing

_log = logging.getLogger("serve")
_FORMAT = "recsys-routing/1"
_MAX_BYTES = 16 << 20


class RoutingFileError(ValueError):
    """The file cannot be read or written; the message names the setting, the file and the reason."""


@dataclass(frozen=True)
class _Kept:
    """A routing that operators set, and the settings' one at that time."""

    routing: Routing
    settings: Routing


class RoutingFile:
    """Keeps routings in a file, which is replaced as a whole. Thread-safe.

    Args:
        path: the file, which need not exist yet; None to keep nothing.

    Raises:
        RoutingFileError: the file cannot be read, or its folder cannot be written to.
    """

    def __init__(self, path: Path | None) -> None:
        # A link stays one: what it leads to is replaced.
        self._path = None if path is None else Path(os.path.realpath(path))
        self._lock = threading.Lock()
        self._kept = {} if self._path is None else _read(self._path)
        self.check()

    def check(self) -> None:
        """Check that the file can be written.

        Raises:
            RoutingFileError: it cannot.
        """
        if self._path is not None:
            with self._refused(), tempfile.TemporaryFile(dir=self._path.absolute().parent):
                pass

    def routing_of(self, model: str, settings: Routing) -> Routing:
        """Return the routing that holds for a model, and say in the log if it is not the settings' one.

        Args:
            model: the model.
            settings: the routing that the settings give.
        """
        kept = self._kept.get(model)
        if kept is None or kept.routing == settings:
            return settings
        if kept.settings == settings:
            _log.info(
                "model %s: routing: %s, as operators set it (%s), not %s as in the settings",
                model,
                text_of(kept.routing),
                self._path,
                text_of(settings),
            )
            return kept.routing
        _log.warning(
            "model %s: routing: %s, as in the settings, which have changed since operators set %s (%s)",
            model,
            text_of(settings),
            text_of(kept.routing),
            self._path,
        )
        return settings

    def keep(self, model: str, routing: Routing, settings: Routing) -> None:
        """Keep the routing of a model; one that is the settings' own is not kept.

        Raises:
            RoutingFileError: the file cannot be written; what it held stays.
        """
        if self._path is None:
            return
        with self._lock:
            kept = {name: value for name, value in self._kept.items() if name != model}
            if routing != settings:
                kept[model] = _Kept(routing, settings)
            if kept != self._kept:
                self._write(kept)
                self._kept = kept

    def _write(self, kept: dict[str, _Kept]) -> None:
        assert self._path is not None
        models = {name: dataclasses.asdict(kept[name]) for name in sorted(kept)}
        text = json.dumps({"format": _FORMAT, "models": models}, indent=1) + "\n"
        with self._refused(), replacing(self._path.absolute()) as beside:
            beside.write_text(text, encoding="utf-8")

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RoutingFileError(
                f"admin.routing_file: cannot write {str(self._path)!r}: {error.strerror or error}; expected a file in "
                "a folder that can be written, or none"
            ) from None


def text_of(routing: Routing) -> str:
    """Return a routing as text for the log."""
    parts = [f"serve {routing.serve}"]
    if routing.canary:
        by = f" by {routing.canary_key}" if routing.canary_key else ""
        parts.append(f"canary {routing.canary} ({routing.canary_percent:g} %{by})")
    if routing.shadow:
        parts.append(f"shadow {routing.shadow} ({routing.shadow_percent:g} %)")
    return ", ".join(parts)


def _read(path: Path) -> dict[str, _Kept]:
    def refused(reason: str) -> RoutingFileError:
        return RoutingFileError(
            f"admin.routing_file: cannot read {str(path)!r}: {reason}; delete it to begin with the settings' routing"
        )

    try:
        # Reading a pipe would wait for a writer.
        if path.exists() and not path.is_file():
            raise refused("it is no regular file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise refused(str(error.strerror)) from None
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES} bytes")
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}")
        models = content["models"]
        return {
            name: _Kept(_routing(value["routing"]), _routing(value["settings"]))
            for name, value in models.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise refused(f"it holds no routings ({error})") from None


def _routing(data: dict[str, Any]) -> Routing:
    for field in dataclasses.fields(Routing):
        value = data[field.name]
        fits = (
            isinstance(value, (int, float)) and not isinstance(value, bool)
            if field.type == "float"
            else isinstance(value, str)
        )
        if not fits:
            raise ValueError(f"{field.name}: got {str(value)[:80]!r}, expected a {field.type}")
    return Routing(**data)
