"""A training pipeline that overlaps each step with the transfer of the next batch to its shards.

While batch i computes, batch i+1 is copied to the device and its IDs are sent: first their sizes (before the
forward pass of i), then the IDs (from the end of its forward pass on, during its backward pass and the
optimizer step). The behaviour is that of TorchRec's ``TrainPipelineSparseDist``.

The first batch shows which inputs can be sent ahead: those of sharded collections that are called with a
KeyedJaggedTensor of the batch itself. A collection that is called with anything else (features that the model
creates or changes) sends its input in its forward pass, as without a pipeline.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection

In = TypeVar("In")
Out = TypeVar("Out")

#: Where a batch holds a KeyedJaggedTensor: the attribute's name, or None if the batch is one.
Place = str | None
Sent = dict[ShardedCollection, Any]


@dataclasses.dataclass
class _Flight(Generic[In]):
    """A batch in transit.

    Attributes:
        batch: On the device, its KeyedJaggedTensors in host memory.
        sent: For each place the results of its collections' ``input_dist``: sizes first, then the inputs.
        is_sent: Whether sizes have been read, and the IDs are in transit.
    """

    batch: In
    sent: dict[Place, Sent]
    is_sent: bool = False


class TrainPipeline(ABC, Generic[In, Out]):
    """Trains a model batch by batch."""

    @abstractmethod
    def progress(self, dataloader_iter: Iterator[In]) -> Out:
        """Run one step.

        Raises:
            StopIteration: The iterator has ended and all its batches are done.
        """

    def reset(self) -> None:
        """Forget batches that were taken from an iterator and not trained."""


class TrainPipelineSparseDist(TrainPipeline[In, Out]):
    """Trains a model batch by batch, while the next batch is in transit.

    The model maps a batch to ``(loss, output)``; gradients are those of the loss's sum. In eval mode only the
    forward pass runs, with the same overlap. Every rank must call ``progress`` equally often.

    A batch is a KeyedJaggedTensor, or an object with KeyedJaggedTensors as attributes. If it has a method
    ``to``, ``to(device, non_blocking=True)`` makes its copy on the device. KeyedJaggedTensors stay in host
    memory, where sharded collections split them. On CUDA, copies overlap if the batch is in page-locked
    memory.

    Args:
        model: Holds sharded collections, such as a DistributedModelParallel.
        optimizer: The optimizer of all parameters that the lookups do not train.
        device: The device of this rank.
        execute_all_batches: False stops when the iterator ends, and leaves its last two batches out.
        apply_jit: False: models are not scripted.
        context_type: Has no effect: TorchRec's record of a batch in transit.
        pipeline_postproc: Has no effect on results: features that the model makes are sent in its forward pass.
        custom_model_fwd: Called with the batch instead of the model.
        dmp_collection_sync_interval_batches: Has no effect: there are no replicas of groups of ranks.
        enqueue_batch_after_forward: Has no effect on results.
        enable_inplace_copy_batch: Has no effect on results.
        free_features_storage_early: Has no effect on results.
        clear_data_dist_inputs: Has no effect on results.

    Raises:
        ValueError: ``apply_jit`` is set.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        execute_all_batches: bool = True,
        apply_jit: bool = False,
        context_type: type | None = None,
        pipeline_postproc: bool = False,
        custom_model_fwd: Callable[[In], tuple[Tensor, Out]] | None = None,
        dmp_collection_sync_interval_batches: int | None = 1,
        enqueue_batch_after_forward: bool = False,
        enable_inplace_copy_batch: bool = False,
        free_features_storage_early: bool = False,
        clear_data_dist_inputs: bool = False,
    ) -> None:
        del context_type, pipeline_postproc, dmp_collection_sync_interval_batches, enqueue_batch_after_forward
        del enable_inplace_copy_batch, free_features_storage_early, clear_data_dist_inputs
        if apply_jit:
            raise ValueError("apply_jit: got True, expected False: models are not scripted")
        self._model = model
        self._forward: Callable[[In], Any] = custom_model_fwd or model
        self._optimizer = optimizer
        self._device = torch.device(device)
        self._execute_all_batches = execute_all_batches
        self._places: dict[ShardedCollection, Place] | None = None
        self._next: _Flight[In] | None = None
        self._ahead: list[In] = []
        is_cuda = self._device.type == "cuda"
        self._copy_stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._dist_stream = torch.cuda.Stream(self._device) if is_cuda else None

    _trains = True

    @property
    def num_pipelined(self) -> int:
        """Number of sharded collections whose input is sent ahead; 0 before the first batch."""
        return len(self._places or {})

    def detach(self) -> nn.Module:
        """Return the model, to run it without the pipeline: it is not changed by it."""
        return self._model

    def attach(self, model: nn.Module | None = None, sparse_dist: bool = True) -> None:
        """Go on with a model, by default the same.

        Args:
            model: Another model; a batch that is in transit for the old one is sent again.
            sparse_dist: Has no effect: what is in transit stays so.
        """
        del sparse_dist
        if model is not None and model is not self._model:
            if self._forward is self._model:
                self._forward = model
            self._model = model
            self._places = None
            if self._next is not None:
                self._next = _Flight(self._next.batch, {})

    def reset(self) -> None:
        """Forget batches that were taken from an iterator and not trained."""
        self._next = None
        self._ahead = []

    def progress(self, dataloader_iter: Iterator[In]) -> Out:
        """Run one step on the batch in transit, and start sending the iterator's next one.

        Args:
            dataloader_iter: The batches; one is taken (two at the start).

        Returns:
            The model's output for the batch.

        Raises:
            StopIteration: The iterator has ended and all its batches are done.
        """
        flight = self._next or self._depart(dataloader_iter)
        if flight is None:
            raise StopIteration
        self._next = None
        if self._trains and self._model.training:
            self._optimizer.zero_grad()
        batch = self._arrive(flight)
        if self._places is None:
            loss, output = self._learn_places(batch)
            self._next = self._depart(dataloader_iter)
        else:
            self._next = self._depart(dataloader_iter)
            loss, output = self._forward(batch)
        if self._next is not None:
            self._send_ids(self._next)
        if self._trains and self._model.training:
            (loss.sum() if loss.dim() else loss).backward()
            self._optimizer.step()
        return cast(Out, output)

    def _taken(self, batches: Iterator[In]) -> In | None:
        """Return the iterator's next batch, None at its end."""
        if self._execute_all_batches:
            return next(batches, None)
        while len(self._ahead) < 2:
            self._ahead.append(next(batches))
        return self._ahead.pop(0)

    def _depart(self, batches: Iterator[In]) -> _Flight[In] | None:
        """Return the iterator's next batch: its copy to the device is started, and the sizes of its inputs are sent."""
        batch = self._taken(batches)
        if batch is None:
            return None
        sent: dict[Place, Sent] = {}
        with _on(self._dist_stream):
            for collection, place in (self._places or {}).items():
                features = _held(batch, place)
                sent.setdefault(place, {})[collection] = collection.input_dist(features)
        with _on(self._copy_stream):
            return _Flight(self._moved(batch), sent)

    def _moved(self, batch: In) -> In:
        if isinstance(batch, KeyedJaggedTensor) or not hasattr(batch, "to"):
            return batch
        moved = batch.to(self._device, non_blocking=True)
        return cast(In, _with(moved, _features(batch)))

    def _send_ids(self, flight: _Flight[In]) -> None:
        """Read the sizes; start sending the IDs."""
        with _on(self._dist_stream):
            for of_place in flight.sent.values():
                for collection, sizes in of_place.items():
                    of_place[collection] = sizes.wait()
        flight.is_sent = True

    def _arrive(self, flight: _Flight[In]) -> In:
        """Return the batch with its collections' inputs, ready for the device's current stream."""
        if not flight.is_sent:
            self._send_ids(flight)
        with _on(self._dist_stream):
            ready = {
                place: {collection: inputs.wait() for collection, inputs in of_place.items()}
                for place, of_place in flight.sent.items()
            }
        for stream, made in ((self._copy_stream, flight.batch), (self._dist_stream, ready)):
            if stream is not None:
                present = torch.cuda.current_stream(self._device)
                present.wait_stream(stream)
                _record(made, present)
        distributed = {
            place: DistributedKeyedJaggedTensor(_held(flight.batch, place), inputs)
            for place, inputs in ready.items()
        }
        return cast(In, _with(flight.batch, distributed))

    def _learn_places(self, batch: In) -> Any:
        """Run the model without a pipeline, and record which collections get which part of the batch."""
        held = {id(features): place for place, features in _features(batch).items()}
        seen: dict[ShardedCollection, set[int]] = {}

        def look(collection: nn.Module, args: tuple[Any, ...]) -> None:
            seen.setdefault(cast(ShardedCollection, collection), set()).add(id(args[0]))

        with ExitStack() as stack:
            for module in self._model.modules():
                if isinstance(module, ShardedCollection):
                    stack.callback(module.register_forward_pre_hook(look).remove)
            result = self._forward(batch)
        self._places = {
            collection: held[given]
            for collection, (given, *others) in seen.items()
            if not others and given in held
        }
        return result


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    # torch's context for no stream asks for the devices, each time.
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _features(batch: Any) -> dict[Place, KeyedJaggedTensor]:
    if isinstance(batch, KeyedJaggedTensor):
        return {None: batch}
    held = vars(batch) if hasattr(batch, "__dict__") else {}
    return {name: value for name, value in held.items() if isinstance(value, KeyedJaggedTensor)}


def _held(batch: Any, place: Place) -> KeyedJaggedTensor:
    features: KeyedJaggedTensor = batch if place is None else getattr(batch, place)
    return features


def _with(batch: Any, features: Any) -> Any:
    """Return a shallow copy of the batch that holds the given features."""
    if None in features:
        return features[None]
    if not features:
        return batch
    changed = copy.copy(batch)
    for place, value in features.items():
        object.__setattr__(changed, place, value)  # batches may be frozen
    return changed


def _record(value: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that a stream uses memory of another one."""
    if isinstance(value, Tensor):
        if value.is_cuda:
            value.record_stream(stream)
    elif isinstance(value, dict):
        for inner in value.values():
            _record(inner, stream)
    elif isinstance(value, list | tuple):
        for inner in value:
            _record(inner, stream)
    elif hasattr(value, "__dict__"):
        _record(vars(value), stream)
