"""The trainer: sharded tables with a fused optimizer, replicated dense layers, and a pipeline.

One process is a group of one rank, with the same code and no communication.

Shape letters: B batch, L labels, W world size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from recsys.checkpoint.single_file import empty_model
from recsys.data.batches import Share
from recsys.data.examples import LabeledBatch
from recsys.embedding import FloatCollection
from recsys.errors import PlanError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels.training import FusedLookup
from recsys.managed import ManagedCollisionCollection, VocabularyModule
from recsys.model_parallel import DistributedModelParallel
from recsys.models.click import ClickModel
from recsys.optim import (
    CombinedOptimizer,
    EmbOptimType,
    FusedConfig,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    RowWiseAdagrad,
)
from recsys.optim.fused_config import WeightDecayMode
from recsys.optim.weight_decay import RowWeightDecay
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharders import (
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    ModuleSharder,
)
from recsys.sharding.table_shards import TableShards
from recsys.train.config import TrainConfig
from recsys.train.next_item import NextItem, NextItemTask, StatesOf
from recsys.train.pipeline import TrainPipelineSparseDist
from recsys.train.ranks import Ranks, one_rank_plan, whole_state_dict
from recsys.train.steps import Step
from recsys.training import TouchedRows

_FUSED_STATE = "momentum1"
_DENSE_STATE = "sum"


class Trainer:
    """A model and its optimizers. Every rank creates one with the same arguments, inside the process group.

    The initial weights are the same under every plan and on any number of ranks.

    Args:
        factory: The name of the model's factory, a function of ``recsys.models``.
        arguments: The factory's.
        config: How to train. Row-wise Adagrad trains the tables, inside the lookups if their kernel is fused.
        ranks: This rank among the others.
        plan: The placement. If None, one rank holds every table whole, and the planner makes it for several.
        next_item: The items that are learned in place of labels; None for labels.

    Attributes:
        model: The model over the ranks; its names are those of the factory's model.
        optimizer: All optimizers as one.
        share: This rank's part of every global batch.
        group: The ranks.
        device: The device of this rank.
        num_labels: L.
        is_frozen: Whether the tables alone are trained.
        next_item: The items that are learned in place of labels; None for labels.

    Raises:
        PlanError: The plan does not fit the tables or the ranks.
        ValueError: The arguments do not fit together.
    """

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        config: TrainConfig,
        ranks: Ranks,
        plan: ShardingPlan | None = None,
        next_item: NextItem | None = None,
    ) -> None:
        env = ranks.env()
        assert env.process_group is not None
        self.group, self.device = env.process_group, ranks.device
        self.share = Share(rank=ranks.rank, world_size=ranks.world_size)
        on_host = ranks.device.type == "cpu"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            of_factory = empty_model(factory, arguments)
            model = _Logits.of(of_factory) if next_item is None else StatesOf.of(of_factory)
            if config.freeze_dense:
                _freeze_dense(model)
            self.num_labels = 1 if model.inputs is None else len(model.inputs.labels)
            if plan is None and ranks.world_size == 1:
                plan = one_rank_plan(model)
            self.model = DistributedModelParallel(
                model, env, ranks.device, plan, _sharders(config, fused_decay=not on_host)
            )
        _check_divided(self.model, ranks.world_size)
        self.is_frozen = config.freeze_dense
        self.optimizer = _optimizer(self.model, config)
        self._keeps_untrained = False
        #: The rows that change; None if nobody asks.
        self.touched: TouchedRows | None = None
        self._weight_decay = RowWeightDecay(self._fused_lookups() if on_host else [], config.row_weight_decay)
        self.next_item = next_item
        self._task: nn.Module = (
            _Task(self.model, ranks.world_size)
            if next_item is None
            else NextItemTask(self.model, ranks.world_size, next_item)
        )
        self._pipeline: TrainPipelineSparseDist[LabeledBatch, Any] = TrainPipelineSparseDist(
            self._task, self.optimizer, ranks.device
        )

    @torch.no_grad()
    def set_vocabularies(self, vocabularies: Mapping[str, NDArray[np.int64]]) -> None:
        """Set the raw IDs of tables with a vocabulary, before the first step; every rank gives the same."""
        for module in self.model.modules():
            if isinstance(module, ManagedCollisionCollection):
                for table, mapping in module.managed_collision_modules().items():
                    if isinstance(mapping, VocabularyModule):
                        mapping.set_ids(torch.from_numpy(vocabularies[table]))

    def steps(self, batches: Iterable[LabeledBatch]) -> Iterator[Step]:
        """Train on the batches in order, the same number on every rank. A yielded step is complete."""
        ahead = iter(batches)
        self._task.train()
        while (step := self._progress(ahead)) is not None:
            self._weight_decay.step()
            yield step

    @torch.no_grad()
    def score(self, batches: Iterable[LabeledBatch]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield each batch's logits and labels, ``[B, L]``, and weights, ``[B]``, without training.

        All ranks need the same number of batches.
        """
        ahead = iter(batches)
        self._task.eval()
        while (step := self._progress(ahead)) is not None:
            yield step.logits, step.labels, step.weights

    @torch.no_grad()
    def vectors(self, batches: Iterable[LabeledBatch]) -> Iterator[tuple[LabeledBatch, Tensor, Tensor]]:
        """Yield each batch with the vectors of its users and of its next items, ``[B, D]`` each, without training.

        All ranks need the same number of batches.
        """
        taken: deque[LabeledBatch] = deque()

        def recorded() -> Iterator[LabeledBatch]:
            for batch in batches:
                taken.append(batch)
                yield batch

        ahead = recorded()
        self._task.eval()
        while (step := self._progress(ahead)) is not None:
            assert step.vectors is not None
            yield taken.popleft(), step.vectors[0], step.vectors[1]

    def _progress(self, batches: Iterator[LabeledBatch]) -> Step | None:
        try:
            return cast(Step, self._pipeline.progress(batches))
        except StopIteration:
            return None

    def keep_untrained(self) -> None:
        """Leave rows that no step touches as they are: they come from an earlier training."""
        self._keeps_untrained = True

    @torch.no_grad()
    def clear_untrained(self) -> None:
        """Set the tables' rows that no step has touched to zero: an unseen ID then acts like an empty bag."""
        if self._keeps_untrained:
            return
        for lookup in self._fused_lookups():
            lookup.flush()
            for shard, (weight, states) in enumerate(zip(lookup.weights, lookup.states(), strict=True)):
                untrained = states[_FUSED_STATE] == 0
                if self.touched is not None:
                    changes = untrained & weight.detach().ne(0).any(dim=1)
                    self.touched.mark_shard(lookup, shard, changes.nonzero().flatten())
                weight.detach()[untrained] = 0
            lookup.tbe.reset_cache_states()  # a cache on the device may hold rows as they were
        if _tables_with_gradients(self.model) and self.touched is not None:
            self.touched.mark_all()
        for parameter in _tables_with_gradients(self.model).values():
            parameter[self.optimizer.state[parameter][_DENSE_STATE][:, 0] == 0] = 0

    def whole_state_dict(self) -> dict[str, Tensor] | None:
        """Return the unsharded model's state dict on rank 0, None on others; every rank must call it."""
        return whole_state_dict(self.model)

    def _fused_lookups(self) -> list[FusedLookup]:
        sharded = self.model.sharded_modules().values()
        return [lookup for part in sharded for lookup in part.lookups if isinstance(lookup, FusedLookup)]


class _Logits(ClickModel):
    """A ClickModel, with the same names, that returns logits for training."""

    @classmethod
    def of(cls, model: nn.Module) -> _Logits:
        assert isinstance(model, ClickModel)
        return cls(model.model, model.inputs)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:  # type: ignore[override]
        return self.logits(dense_features, sparse_features)


class _Task(nn.Module):
    """A module that returns the loss and the step's record of a batch, as the pipeline expects.

    Gradients are averaged over the ranks. To make them those of the global batch's mean loss even if the
    ranks' batches differ in size or are empty, each rank's loss is its sum × W / the global batch's rows;
    this is the mean of its own batch if all have the same size.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        super().__init__()
        self._model = model
        self._world_size = world_size

    def forward(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        logits = self._model(batch.dense, batch.kjt)
        weights = None if batch.weights is None else batch.weights.unsqueeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels, weights, reduction="sum")
        loss = loss / logits.shape[1]
        step = Step(
            loss=loss.detach(),
            logits=logits.detach(),
            labels=batch.labels,
            weights=batch.weights,
            num_global_rows=batch.num_global_rows,
        )
        return loss * (self._world_size / batch.num_global_rows), step


class _Optimizer(CombinedOptimizer):
    """All optimizers as one. Gradients are dropped after each step: keeping them takes a pass of zeros and a sum."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)


def _sharders(config: TrainConfig, *, fused_decay: bool) -> list[ModuleSharder[Any]]:
    decay = config.row_weight_decay if fused_decay else 0.0
    fused_params = {
        "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": config.row_learning_rate,
        "weight_decay": decay,
        "weight_decay_mode": WeightDecayMode.L2 if decay else WeightDecayMode.NONE,
    }
    return [EmbeddingBagCollectionSharder(fused_params), EmbeddingCollectionSharder(fused_params)]


def _optimizer(model: DistributedModelParallel, config: TrainConfig) -> CombinedOptimizer:
    """Return the optimizers of the lookups, of tables with gradients and of dense layers as one."""
    of_tables = {
        id(p) for part in model.modules() if isinstance(part, TableShards) for p in part.parameters()
    }
    dense = {name: p for name, p in model.named_parameters() if id(p) not in of_tables}

    def dense_optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.Adagrad
        # One pass over all parameters in host memory; elsewhere torch chooses.
        is_fused = all(parameter.device.type == "cpu" for parameter in parameters) or None
        return kind(parameters, lr=config.learning_rate, fused=is_fused)

    def row_optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return RowWiseAdagrad(
            parameters,
            lr=config.row_learning_rate,
            eps=FusedConfig.eps,  # as where rows are updated in the backward pass
            weight_decay=config.row_weight_decay,
        )

    tables = _tables_with_gradients(model)
    parts: list[KeyedOptimizer] = [model.fused_optimizer]
    if not config.freeze_dense:
        parts.append(KeyedOptimizerWrapper(dense, dense_optimizer))
    if tables:
        parts.append(KeyedOptimizerWrapper(tables, row_optimizer))
    return _Optimizer(parts)


def _check_divided(model: DistributedModelParallel, world_size: int) -> None:
    """Check that mappings with buckets lie on all ranks.

    Raises:
        PlanError: One is held by every rank.
    """
    for module in model.modules() if world_size > 1 else ():
        if not isinstance(module, ManagedCollisionCollection):
            continue
        for table, mapping in module.managed_collision_modules().items():
            if mapping.buckets() > 1 and mapping.part is None:
                raise PlanError(
                    f"table {table!r}: got {mapping.buckets()} mapping_buckets for {world_size} ranks, expected a "
                    "multiple of the ranks, and a plan that places the table row_wise on all of them"
                )


def _freeze_dense(model: nn.Module) -> None:
    """Exclude all parameters but the tables' from training."""
    of_tables = {
        id(p) for part in model.modules() if isinstance(part, FloatCollection) for p in part.parameters()
    }
    for parameter in model.parameters():
        if id(parameter) not in of_tables:
            parameter.requires_grad_(False)


def _tables_with_gradients(model: DistributedModelParallel) -> dict[str, nn.Parameter]:
    """Return this rank's tables and shards of the dense kernel, by name."""
    plain = [part for part in model.modules() if isinstance(part, TableShards) and not part.is_fused]
    held = {id(parameter) for part in plain for parameter in part.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in held}
