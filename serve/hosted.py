"""One loaded version of a model: its tables, its threads, its checks, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from serve.answers import ResponseWriter
from serve.capture_file import CaptureError
from serve.config import ModelSettings
from serve.executor import Executor, ExecutorSettings
from serve.loading import load_model
from serve.metadata import model_metadata
from serve.metrics import Metrics
from serve.model import ModelInfo, ServedModel
from serve.model_metrics import ModelDescription
from serve.request_check import CheckedRequest, RequestChecker
from serve.warm_up import captured_batches, warm_up_batches
from serve.work import Answered


class HostedModel:
    """A model that is ready to answer once ``open`` has returned.

    ``open`` and ``close`` block and belong to other threads than the event loop's.

    Args:
        model: runs the batches.
        info: how it presents itself.
        settings: how it is served.
        metrics: of the server; this version's series are added, and go with ``close``.
        deliver: takes the answers of a whole batch, in an executor's thread.
    """

    def __init__(
        self,
        model: ServedModel,
        info: ModelInfo,
        settings: ModelSettings,
        metrics: Metrics,
        deliver: Callable[[Answered], None],
    ) -> None:
        self.name, self.version = info.name, info.version
        self.info = info
        self.model = model
        self.signature = model.signature
        self.settings = settings
        self.deltas: list[str] = []
        self._all_metrics = metrics
        self.metrics = metrics.begin(info.name, info.version)
        self.checker = RequestChecker(
            model.signature, settings.limits, allow_non_finite=settings.allow_non_finite
        )
        self.writer = ResponseWriter(info, model.signature)
        self.executor = Executor(
            ExecutorSettings(
                model=model,
                info=info,
                limits=settings.limits,
                metrics=self.metrics,
                num_threads=settings.num_executors,
                cpus=settings.cpus,
            ),
            deliver,
        )

    @property
    def table_bytes(self) -> int:
        """Of all tables' rows."""
        return sum(self.info.table_bytes.values())

    def open(self) -> None:
        """Start the threads and warm them up.

        Raises:
            RuntimeError: the model failed on a warm-up batch.
            CaptureError: the settings name captured requests to warm up with, and the file is missing or none. Of these
                and of any other error: nothing of it is left running, or in the metrics.
        """
        try:
            self.executor.start(self._warm_up())
            self.executor.wait_until_warm()
        except BaseException:
            self.close()
            raise
        self.metrics.set_table_bytes(self.info.table_bytes)
        self.metrics.describe(
            ModelDescription(
                target=self.model.target_name,
                digest=self.info.digest,
                num_executors=self.settings.num_executors,
                limits=self.settings.limits,
            )
        )

    def _warm_up(self) -> list[list[CheckedRequest]]:
        limits = self.settings.limits
        batches = list(warm_up_batches(self.signature, limits))
        if self.settings.warm_up is not None:
            try:
                batches += captured_batches(self.settings.warm_up, self.checker, limits)
            except CaptureError as error:
                raise CaptureError(f"warm_up: {error}") from None
        return batches

    def metadata(self, max_message_bytes: int) -> bytes:
        """A serialized ``recsys.v1.ModelMetadata``."""
        message = model_metadata(
            self.signature,
            self.info,
            target=self.model.target_name,
            limits=self.settings.limits,
            max_message_bytes=max_message_bytes,
        )
        message.deltas.extend(self.deltas)
        data: bytes = message.SerializeToString()
        return data

    def close(self) -> None:
        """Answer what was accepted and end the threads; idempotent. The series go from the metrics."""
        self.executor.close()
        self._all_metrics.drop(self.metrics)


def open_hosted(
    name: str,
    version: str,
    path: Path,
    settings: ModelSettings,
    metrics: Metrics,
    deliver: Callable[[Answered], None],
) -> HostedModel:
    """Load an artifact and warm it up; blocks.

    Args:
        name: the model's, as requests name it.
        version: as responses name it.
        path: of the artifact.
        settings: how to serve it.
        metrics: of the server.
        deliver: takes the answers of a whole batch, in an executor's thread.

    Raises:
        ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
        RuntimeError: the model failed on a warm-up batch.
    """
    artifact, info = load_model(
        path, settings.target, verify_checksums=settings.verify_checksums, copy_rows=settings.copy_rows
    )
    hosted = HostedModel(artifact, replace(info, name=name, version=version), settings, metrics, deliver)
    hosted.open()
    return hosted
