"""The default sizes and rates of a training, by data source."""

from __future__ import annotations

from dataclasses import dataclass, field

from recsys.train.config import ModelConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Default sizes and rates of a source."""

    train: TrainConfig
    model: ModelConfig = field(default_factory=ModelConfig)


_CLICK_LOG = Defaults(
    train=TrainConfig(epochs=1, batch_size=1024, row_learning_rate=0.02),
    model=ModelConfig(dense_layers=(256, 64), over_layers=(256, 128)),
)
DEFAULTS = {
    "synthetic": Defaults(
        train=TrainConfig(
            epochs=2, batch_size=512, learning_rate=2e-3, row_learning_rate=0.1, row_weight_decay=3e-5
        )
    ),
    "criteo": _CLICK_LOG,
    "table": _CLICK_LOG,
    "movielens": Defaults(train=TrainConfig(epochs=3, batch_size=512, row_weight_decay=1e-3)),
}
SYNTHETIC_ROWS = 300_000
