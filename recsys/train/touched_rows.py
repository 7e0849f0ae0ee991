"""Training large tables at the cost of the rows that a batch touches.

A step gathers the touched rows of each table into a small one, renumbers the batch's IDs, runs the model on the
small tables in place of the large ones, and writes the updated rows back. So neither a gradient nor an
optimizer's state of a table's full size is made or read, and the model's modules stay as they are.

The optimizer is Adagrad with one state per row, as FBGEMM's EXACT_ROWWISE_ADAGRAD: the mean over a row of the
squared gradient is added to the row's state, and the row moves by ``learning_rate * gradient / (sqrt(state) +
eps)``.

Shape letters: D embedding dim, R rows, U rows of a table that a batch touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.train.examples import Batch

_EPS = 1e-8  # FBGEMM's default


@dataclass
class _Table:
    features: list[str]
    weight: Tensor  # [R, D]
    state: Tensor  # [R]


class TouchedRows:
    """The tables of a model, trained row by row.

    Args:
        model: takes ``(dense, kjt)``; every feature is looked up in one table.
        learning_rate: of the rows.
        weight_decay: pulls each touched row towards zero, added to the gradient as ``weight_decay * row``.

    Raises:
        ValueError: a feature is looked up in several tables.
    """

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float = 0.0) -> None:
        self._model = model
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._tables: dict[str, _Table] = {}
        owners: dict[str, str] = {}
        for path, module in model.named_modules():
            if not isinstance(module, EmbeddingBagCollection):
                continue
            for config in module.embedding_bag_configs():
                name = f"{path}.embedding_bags.{config.name}.weight".lstrip(".")
                weight = model.get_parameter(name).detach()
                self._tables[name] = _Table(config.feature_names, weight, weight.new_zeros(len(weight)))
                for feature in config.feature_names:
                    if feature in owners:
                        raise ValueError(
                            f"feature {feature!r}: got tables {owners[feature]!r} and {name!r}, expected one"
                        )
                    owners[feature] = name

    def parameter_names(self) -> set[str]:
        """The names of the tables' weights in the model."""
        return set(self._tables)

    def forward(self, batch: Batch) -> tuple[Tensor, Mapping[str, tuple[Tensor, Tensor]]]:
        """The model's output for a batch, and by table the touched row numbers ``[U]`` and rows ``[U, D]``."""
        features = batch.kjt.to_dict()
        ids = {key: jt.values() for key, jt in features.items()}
        touched: dict[str, tuple[Tensor, Tensor]] = {}
        for name, table in self._tables.items():
            of_table = [ids[feature] for feature in table.features]
            rows, renumbered = torch.unique(torch.cat(of_table), return_inverse=True)
            touched[name] = (rows, table.weight[rows].requires_grad_())
            parts = renumbered.split([len(part) for part in of_table])
            ids.update(zip(table.features, parts, strict=True))
        keys = batch.kjt.keys()
        kjt = KeyedJaggedTensor(
            keys=keys,
            values=torch.cat([ids[key] for key in keys]),
            lengths=batch.kjt.lengths(),
            stride=batch.kjt.stride(),
            length_per_key=batch.kjt.length_per_key(),
        )
        small = {name: rows for name, (_, rows) in touched.items()}
        output: Tensor = functional_call(self._model, small, (batch.dense, kjt))
        return output, touched

    @torch.no_grad()
    def step(self, touched: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Move the touched rows along their gradients, which ``backward`` has left on them."""
        for name, (rows, values) in touched.items():
            table = self._tables[name]
            assert values.grad is not None
            gradient = values.grad
            if self._weight_decay:
                gradient = gradient + self._weight_decay * values
            state = table.state[rows] + gradient.square().mean(dim=1)
            table.state[rows] = state
            scale = self._learning_rate / (state.sqrt() + _EPS)
            table.weight[rows] = values - scale.unsqueeze(1) * gradient

    @torch.no_grad()
    def clear_untrained(self) -> None:
        """Set the rows that no step has touched to zero: an ID never seen then acts as an empty bag, not as noise."""
        for table in self._tables.values():
            table.weight[table.state == 0] = 0
