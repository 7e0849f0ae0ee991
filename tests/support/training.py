"""``fit`` over an opened data set, with the configs of a test."""

from __future__ import annotations

from dataclasses import fields

from recsys.data.examples import Dataset
from recsys.models.click import ClickModel
from recsys.train import Callback, fit
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.progress import Epoch


def train(
    dataset: Dataset, model: ModelConfig, config: TrainConfig, callback: Callback | None = None
) -> tuple[ClickModel, list[Epoch]]:
    """Return the trained model, and what was measured after each epoch."""
    settings = {field.name: getattr(part, field.name) for part in (model, config) for field in fields(part)}
    fitted = fit(dataset, callbacks=[] if callback is None else [callback], **settings)
    assert isinstance(fitted.model.module, ClickModel)
    return fitted.model.module, list(fitted.report.epochs)
