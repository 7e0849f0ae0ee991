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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection
from recsys.sharding.transport.awaitable import Awaitable

B = TypeVar("B")

#: Where a batch holds a KeyedJaggedTensor: the attribute's name, or None if the batch is one.
Place = str | None
Sent = dict[ShardedCollection, Any]


@dataclasses.dataclass
class _Flight(Generic[B]):
    """A batch in transit.

    Attributes:
        batch: On the device, its KeyedJaggedTensors in host memory.
        sent: For each place the results of its collections' ``input_dist``: sizes first, then the inputs.
        is_sent: Whether sizes have been read, and the IDs are in transit.
    """

    batch: B
    sent: dict[Place, Sent]
    is_sent: bool = False


class TrainPipelineSparseDist(Generic[B]):
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
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._model = model
        self._optimizer = optimizer
        self._device = torch.device(device)
        self._places: dict[ShardedCollection, Place] | None = None
        self._next: _Flight[B] | None = None
        is_cuda = self._device.type == "cuda"
        self._copies = _stream(self._device) if is_cuda else None
        self._exchanges = _stream(self._device) if is_cuda else None

    @property
    def num_pipelined(self) -> int:
        """Number of sharded collections whose input is sent ahead; 0 before the first batch."""
        return len(self._places or {})

    def progress(self, batches: Iterator[B]) -> Any:
        """Run one step on the batch in transit, and start sending the iterator's next one.

        Args:
            batches: The batches; one is taken (two at the start).

        Returns:
            The model's output for the batch.

        Raises:
            StopIteration: The iterator has ended and all its batches are done.
        """
        flight = self._next or self._depart(batches)
        if flight is None:
            raise StopIteration
        self._next = None
        if self._model.training:
            self._optimizer.zero_grad()
        batch = self._arrive(flight)
        if self._places is None:
            loss, output = self._learn_places(batch)
            self._next = self._depart(batches)
        else:
            self._next = self._depart(batches)
            loss, output = self._model(batch)
        if self._next is not None:
            self._send_ids(self._next)
        if self._model.training:
            loss.sum().backward()
            self._optimizer.step()
        return output

    def _depart(self, batches: Iterator[B]) -> _Flight[B] | None:
        """Return the iterator's next batch: its copy to the device is started, and the sizes of its inputs are sent."""
        batch = next(batches, None)
        if batch is None:
            return None
        sent: dict[Place, Sent] = {}
        with _on(self._exchanges):
            for collection, place in (self._places or {}).items():
                features = _held(batch, place)
                sent.setdefault(place, {})[collection] = collection.input_dist(features)
        with _on(self._copies):
            return _Flight(self._moved(batch), sent)

    def _moved(self, batch: B) -> B:
        if isinstance(batch, KeyedJaggedTensor) or not hasattr(batch, "to"):
            return batch
        moved = batch.to(self._device, non_blocking=True)
        return cast(B, _with(moved, _features(batch)))

    def _send_ids(self, flight: _Flight[B]) -> None:
        """Read the sizes; start sending the IDs."""
        with _on(self._exchanges):
            for of_place in flight.sent.values():
                for collection, sizes in of_place.items():
                    of_place[collection] = sizes.wait()
        flight.is_sent = True

    def _arrive(self, flight: _Flight[B]) -> B:
        """Return the batch with its collections' inputs, ready for the device's current stream."""
        if not flight.is_sent:
            self._send_ids(flight)
        with _on(self._exchanges):
            ready = {
                place: {collection: _waited(inputs) for collection, inputs in of_place.items()}
                for place, of_place in flight.sent.items()
            }
        for stream, made in ((self._copies, flight.batch), (self._exchanges, ready)):
            if stream is not None:
                present = torch.cuda.current_stream(self._device)
                present.wait_stream(stream)
                _record(made, present)
        distributed = {
            place: DistributedKeyedJaggedTensor(_held(flight.batch, place), inputs)
            for place, inputs in ready.items()
        }
        return cast(B, _with(flight.batch, distributed))

    def _learn_places(self, batch: B) -> Any:
        """Run the model without a pipeline, and record which collections get which part of the batch."""
        held = {id(features): place for place, features in _features(batch).items()}
        seen: dict[ShardedCollection, set[int]] = {}

        def look(collection: nn.Module, args: tuple[Any, ...]) -> None:
            seen.setdefault(cast(ShardedCollection, collection), set()).add(id(args[0]))

        with ExitStack() as stack:
            for module in self._model.modules():
                if isinstance(module, ShardedCollection):
                    stack.callback(module.register_forward_pre_hook(look).remove)
            result = self._model(batch)
        self._places = {
            collection: held[given]
            for collection, (given, *others) in seen.items()
            if not others and given in held
        }
        return result


@contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    with torch.cuda.stream(stream):  # for None, nothing
        yield


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _waited(inputs: Awaitable[Any]) -> Any:
    return inputs.wait()


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
