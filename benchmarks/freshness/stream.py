"""What fresh rows are worth: the AUC of a stream of clicks, served with deltas each five seconds, minute and hour.

Time is simulated: a step of training stands for five seconds of clicks, which each served model scores before the
trainer learns from them. Deltas and artifacts are real. Each minute new items appear, which the first model does not
know, and the favour of all items changes.

Shape letters: B clicks.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.freshness.model import ClickStream, trained_online
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.metrics.exact import auc

STEP_S = 5
#: Seconds between two deltas of a served model; 0 for none.
INTERVALS_S = (5, 60, 3600, 0)
_FIRST_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """The AUC of a served model.

    Attributes:
        interval_s: simulated seconds between deltas; 0 for none.
        auc: of all clicks after the first model.
        num_deltas: applied.
    """

    interval_s: int
    auc: float
    num_deltas: int


@dataclass
class _Served:
    interval_s: int
    artifact: LoadedArtifact
    applied: int = 0
    scores: list[NDArray[np.float32]] = field(default_factory=list)

    def follow(self, deltas: list[Path], now_s: int) -> None:
        if self.interval_s == 0 or now_s % self.interval_s:
            return
        for delta in deltas[self.applied :]:
            apply(prepare(self.artifact.rows, delta))
        self.applied = len(deltas)

    def score(self, ids: torch.Tensor) -> None:
        num_clicks = ids.shape[1]
        with torch.inference_mode():
            (found,) = self.artifact.forward(
                torch.ones(2 * num_clicks, dtype=torch.int64), ids.flatten()
            ).values()
        self.scores.append(found.numpy())


def measure_stream(folder: Path, num_steps: int, clicks_per_step: int) -> list[Freshness]:
    """Let a trainer and the served models meet a stream of clicks.

    Args:
        folder: where artifacts and deltas go.
        num_steps: simulated time, in steps of five seconds.
        clicks_per_step: B.
    """
    world, labels = ClickStream(clicks_per_step), []
    deltas_folder = folder / "deltas"
    deltas_folder.mkdir(parents=True)
    with ExitStack() as stack:
        model = stack.enter_context(trained_online())
        for _ in range(_FIRST_STEPS):
            model.learn(*world.clicks())
        artifact = model.export(folder / "model.artifact")
        publisher = stack.enter_context(model.publisher(artifact, deltas_folder))
        served = [_Served(interval, load_artifact(artifact)) for interval in INTERVALS_S]
        deltas: list[Path] = []
        for step in range(num_steps):
            if step % 12 == 0:
                world.minute()
            ids, clicked = world.clicks()
            for one in served:
                one.follow(deltas, step * STEP_S)
                one.score(ids)
            labels.append(clicked.numpy())
            model.learn(ids, clicked)
            if not publisher.finish():
                raise RuntimeError(f"nothing is published: {publisher.status.reason}")
            deltas += _new_of(deltas_folder, deltas)
    clicked_all = np.concatenate(labels).astype(np.float64)
    return [
        Freshness(
            interval_s=one.interval_s,
            auc=auc(np.concatenate(one.scores), clicked_all) or 0.0,
            num_deltas=one.applied,
        )
        for one in served
    ]


def _new_of(folder: Path, known: list[Path]) -> list[Path]:
    return sorted(set(folder.glob("*.delta")) - set(known), key=lambda path: path.stat().st_mtime_ns)
