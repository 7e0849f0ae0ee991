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

from recsys.checkpoint.single_file import empty_model
from recsys.data.batches import Share
from recsys.data.examples import LabeledBatch
from recsys.errors import PlanError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels.training import FusedLookup
from recsys.managed import ManagedCollisionCollection, VocabularyModule
from recsys.model_parallel import DistributedModelParallel
from recsys.optim.weight_decay import RowWeightDecay
from recsys.sharding.plan.plan import ShardingPlan
from recsys.train.config import TrainConfig
from recsys.train.losses.click import ClickLoss
from recsys.train.losses.towers import TowerItems, TowerTask
from recsys.train.stepping.next_item import NextItem, NextItemTask
from recsys.train.stepping.optimizers import Optimizers, freeze_dense, sharders, tables_with_gradients
from recsys.train.stepping.pipeline import TrainPipelineSparseDist
from recsys.train.stepping.ranks import Ranks, one_rank_plan, whole_state_dict
from recsys.train.stepping.steps import Step
from recsys.train.stepping.tasks import ClickTask, LogitsOf, VectorsOf, trained_form
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
        items: The items that are learned in place of labels: next ones, or those of two towers; None for labels.

    Attributes:
        model: The model over the ranks; its names are those of the factory's model.
        optimizer: All optimizers as one.
        share: This rank's part of every global batch.
        group: The ranks.
        device: The device of this rank.
        labels: The L labels; None where the model does not say.
        is_frozen: Whether the tables alone are trained.
        items: The items that are learned in place of labels; None for labels.

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
        items: NextItem | TowerItems | None = None,
    ) -> None:
        env = ranks.env()
        assert env.process_group is not None
        self.group, self.device = env.process_group, ranks.device
        self.share = Share(rank=ranks.rank, world_size=ranks.world_size)
        on_host = ranks.device.type == "cpu"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            of_factory = empty_model(factory, arguments)
            model = trained_form(of_factory, LogitsOf if items is None else VectorsOf)
            if config.freeze_dense:
                freeze_dense(model)
            self.labels = None if model.inputs is None else model.inputs.labels
            if plan is None and ranks.world_size == 1:
                plan = one_rank_plan(model)
            self.model = DistributedModelParallel(
                model, env, ranks.device, plan, sharders(config, fused_decay=not on_host)
            )
        _check_divided(self.model, ranks.world_size)
        self.is_frozen = config.freeze_dense
        self.optimizer = Optimizers(self.model, config)
        self._keeps_untrained = False
        #: The rows that change; None if nobody asks.
        self.touched: TouchedRows | None = None
        self._weight_decay = RowWeightDecay(self._fused_lookups() if on_host else [], config.row_weight_decay)
        self.items = items
        computed = (
            self.model if config.mixed_precision == "none" else _Autocast(self.model, ranks.device.type)
        )
        self._task = self._task_of(computed, config, ranks.world_size)
        self._accumulate = config.accumulate
        self._pipeline: TrainPipelineSparseDist[LabeledBatch, Any] = TrainPipelineSparseDist(
            self._task, self.optimizer, ranks.device, custom_model_fwd=self._share_of_step
        )

    def _task_of(self, model: nn.Module, config: TrainConfig, world_size: int) -> nn.Module:
        group = self.group if config.gather_negatives and world_size > 1 else None
        if isinstance(self.items, NextItem):
            return NextItemTask(model, world_size, self.items, group)
        if isinstance(self.items, TowerItems):
            return TowerTask(model, world_size, self.items, group)
        loss = ClickLoss(
            kind=config.loss,
            positive_weight=config.positive_weight,
            focal_gamma=config.focal_gamma,
            label_weights=config.label_weights,
            labels=self.labels or (),
        )
        return ClickTask(model, world_size, loss, group)

    @torch.no_grad()
    def set_vocabularies(self, vocabularies: Mapping[str, NDArray[np.int64]]) -> None:
        """Set the raw IDs of tables with a vocabulary, before the first step; every rank gives the same."""
        for module in self.model.modules():
            if isinstance(module, ManagedCollisionCollection):
                for table, mapping in module.managed_collision_modules().items():
                    if isinstance(mapping, VocabularyModule):
                        mapping.set_ids(torch.from_numpy(vocabularies[table]))

    def steps(
        self, batches: Iterable[LabeledBatch], rates: Iterable[tuple[float, float]] | None = None
    ) -> Iterator[Step]:
        """Train on the batches in order, the same number on every rank. A yielded step is complete.

        Gradients that wait for further batches at the end make a step of their own.

        Args:
            batches: The batches.
            rates: For each of them the factors of the dense layers' and of the tables' learning rate; None for 1.
        """
        ahead, rates_ahead = iter(batches), None if rates is None else iter(rates)
        self._task.train()
        while True:
            if rates_ahead is not None:
                self.optimizer.set_rates(*next(rates_ahead))
            step = self._progress(ahead)
            if step is None:
                break
            self._weight_decay.step()
            yield step
        self.optimizer.flush()

    def _share_of_step(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        """Return the batch's part of the loss of a step, and its record."""
        loss, step = self._task(batch)
        return (loss / self._accumulate if self._accumulate > 1 else loss), step

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
        if tables_with_gradients(self.model) and self.touched is not None:
            self.touched.mark_all()
        for parameter in tables_with_gradients(self.model).values():
            parameter[self.optimizer.state[parameter][_DENSE_STATE][:, 0] == 0] = 0

    def whole_state_dict(self) -> dict[str, Tensor] | None:
        """Return the unsharded model's state dict on rank 0, None on others; every rank must call it."""
        return whole_state_dict(self.model)

    def _fused_lookups(self) -> list[FusedLookup]:
        sharded = self.model.sharded_modules().values()
        return [lookup for part in sharded for lookup in part.lookups if isinstance(lookup, FusedLookup)]


class _Autocast(nn.Module):
    """A model whose dense layers compute in bfloat16 while it trains; what it returns is float32."""

    def __init__(self, model: nn.Module, device_type: str) -> None:
        super().__init__()
        self._model = model
        self._device_type = device_type

    def forward(
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor | None, ...]:
        with torch.autocast(self._device_type, torch.bfloat16, enabled=self.training):
            found = self._model(dense_features, sparse_features)
        return tuple(None if part is None else part.float() for part in found)


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
