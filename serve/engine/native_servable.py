"""A version that the native engine has opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.artifact.manifest import Manifest
from recsys.inputs.signature import Signature
from recsys.rows.memory import RowsPages
from serve.config.models import ModelSettings
from serve.engine.interface import ModelInfo
from serve.engine.native_events import totals_of
from serve.errors import ModelChangeError
from serve.metrics.counters import ModelDescription, ModelTotals

if TYPE_CHECKING:
    from serve.engine.native import NativeEngine


class NativeServable:
    """See ``serve.engine.interface.Servable``.

    Args:
        version: the binding's object.
        settings: how it is served.
        engine: the engine that opened it.
        manifest: that of its artifact.
    """

    def __init__(
        self,
        version: Any,
        settings: ModelSettings,
        engine: NativeEngine,
        manifest: Manifest,
    ) -> None:
        about = json.loads(version.description())
        self.version: Any = version
        self.info = ModelInfo(
            name=about["name"],
            version=about["version"],
            target=about["target"],
            digest=about["digest"],
            table_bytes=about["table_bytes"],
            format_version=about["format"],
            torch_version=about["torch"],
            fbgemm_version=about["fbgemm"],
            rows_pages=RowsPages(**about["rows_pages"]),
            examples=manifest.fitting_examples(),
            data_sketch=manifest.data_sketch,
        )
        self.signature = Signature.from_json(about["signature"])
        self.settings = settings
        self.deltas: list[str] = []
        self._description = ModelDescription(
            target=self.info.target,
            digest=self.info.digest,
            num_executors=about["num_executors"],
            limits=settings.limits,
            rows_pages=self.info.rows_pages,
        )
        self._engine = engine
        # The last counters, set by close, which drops the version and its memory.
        self._last: ModelTotals | None = None

    def apply_delta(self, path: Path) -> int:
        """See ``Servable``."""
        if self.version is None:
            raise ModelChangeError(f"version {self.info.version!r} has left the memory")
        with self._engine.own_errors():
            num_dense_left: int = self.version.apply_delta(str(path))
        return num_dense_left

    def num_owned(self, table: str, ids: NDArray[np.int64]) -> int | None:
        """See ``Servable``."""
        version = self.version  # another thread may be closing the servable
        found = -1 if version is None else version.num_owned(table, ids.tobytes())
        return None if found < 0 else found

    def totals(self) -> ModelTotals:
        """See ``Servable``."""
        version = self.version  # another thread may be closing the servable
        if version is None:
            assert self._last is not None
            return self._last
        return totals_of(version.totals(), self.info, self._description)

    def close(self) -> None:
        """See ``Servable``."""
        if self.version is None:
            return
        self.version.close()
        self._last = self.totals()
        self._engine.forget(self)
        self.version = None
