"""The observer of a server: passes engines' records to the log, traces, captures and shadow comparisons."""

from __future__ import annotations

from typing import NamedTuple

from serve.config.settings import ServerConfig
from serve.engine.answered import AnsweredBlock
from serve.engine.records import Captured, EndedRequest, Sampling, ShadowPair
from serve.metrics.registry import Metrics
from serve.observe.answers.log import AnswerLog
from serve.observe.capture import Capture
from serve.observe.logs import RequestLog, log_counts
from serve.observe.shadow import Comparer
from serve.observe.tracing import Tracer, make_tracer
from serve.quality.drift import InputWatch
from serve.quality.families import QualityCollector
from serve.quality.monitor import LabelledQuality

# For how long records of answers wait for others: where labels may come for them, where they go to a topic, and where
# to files, for this part of a file's age within these bounds. Each block of them costs its readers milliseconds,
# however few requests it has.
_LABELLED_WAIT_S, _TOPIC_WAIT_S = 0.5, 1.0
_WAITS_OF_AGE, _LEAST_WAIT_S, MOST_WAIT_S = 12, 0.5, 5.0


class QualityWatch(NamedTuple):
    """What watches quality.

    Attributes:
        answers: keeps answers for labels.
        inputs: compares requests with the training data.
    """

    answers: LabelledQuality
    inputs: InputWatch


class Observers:
    """See ``serve.engine.records.Observer``. Each part is created only if the settings enable it.

    Args:
        config: the server's settings.
        metrics: exposes the numbers of dropped records.

    Attributes:
        quality: watches quality; None where that is off.

    Raises:
        OSError: the capture's file cannot be created.
        ConfigError: traces cannot be sent.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self.sampling = Sampling(
            logged=config.log.requests,
            trace_share=None if config.trace is None else config.trace.share,
            capture_share=0.0 if config.capture is None else config.capture.share,
            answered_share=0.0 if config.quality is None else config.quality.share,
            inputs_share=_inputs_share(config),
            answers_wait_s=_answers_wait_s(config),
        )
        self._log = RequestLog(config.log)
        self._comparer = Comparer(metrics)
        self._capture = None if config.capture is None else Capture(config.capture)
        self._answers = None if config.answer_log is None else AnswerLog(config.answer_log)
        self._tracer: Tracer | None = None if config.trace is None else make_tracer(config.trace)
        self.quality: QualityWatch | None = None
        if config.quality is not None:
            self.quality = QualityWatch(LabelledQuality(config.quality), InputWatch(config.quality))
        metrics.watch("log", log_counts)
        if self.quality is not None:
            metrics.registry.register(QualityCollector(*self.quality))
        if self._capture is not None:
            metrics.watch("capture", self._capture.counts)
        if self._answers is not None:
            metrics.watch("answers", self._answers.counts)
        if self._tracer is not None:
            metrics.watch("trace", self._tracer.counts)

    def ended(self, request: EndedRequest) -> None:
        """See ``Observer``."""
        if request.is_logged and self._log.takes(request.outcome, request.num_left_out):
            self._log.write(request)
        if request.is_traced and self._tracer is not None:
            self._tracer.record(request)

    def captured(self, request: Captured) -> None:
        """See ``Observer``."""
        if self._capture is not None:
            self._capture.offer(request)

    def answered(self, block: AnsweredBlock) -> None:
        """See ``Observer``."""
        if self._answers is not None:
            self._answers.offer(block)
        if self.quality is not None:
            self.quality.answers.answered(block)
            self.quality.inputs.offer(block)

    def shadowed(self, pair: ShadowPair) -> None:
        """See ``Observer``."""
        self._comparer.compare(pair)
        if self.quality is not None:
            self.quality.answers.shadowed(pair)

    def close(self) -> None:
        """Write the waiting records; blocks for a few seconds at most."""
        self._comparer.close()
        if self._capture is not None:
            self._capture.close()
        if self._answers is not None:
            self._answers.close()
        if self.quality is not None:
            self.quality.inputs.close()
        if self._tracer is not None:
            self._tracer.close()


def _inputs_share(config: ServerConfig) -> float:
    """Return the largest share of answers that a reader wants with their inputs."""
    log = 0.0 if config.answer_log is None else config.answer_log.share
    return log if config.quality is None else max(log, config.quality.drift_share)


def _answers_wait_s(config: ServerConfig) -> float:
    """Return for how long records of answers may wait for others, so that its readers get fewer blocks."""
    if config.quality is not None or config.answer_log is None:
        return _LABELLED_WAIT_S
    if config.answer_log.topic is not None:
        return _TOPIC_WAIT_S
    return min(max(_LEAST_WAIT_S, config.answer_log.max_file_age_s / _WAITS_OF_AGE), MOST_WAIT_S)
