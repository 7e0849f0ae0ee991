"""What stands for ``pack_padded_sequence`` while a model is traced: a recurrent layer runs over the padded rows.

Its outputs behind a row's length are padding, and its last state is the output at that length. Packed numbers
themselves lie in another order in every batch, so that no graph can hold them.

Shape letters: B batch, L places of a row, D size of a state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx, nn
from torch.nn.utils import rnn

_pack, _pad = rnn.pack_padded_sequence, rnn.pad_packed_sequence


class PackedRows:
    """Rows that the model's code has packed.

    Args:
        rows: ``[B, L, D]``, traced.
        lengths: ``[B]``.
        width: L.
    """

    def __init__(self, rows: Any, lengths: Any, width: int) -> None:
        self.rows, self.lengths, self.width = rows, lengths, width

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(f"{name} of packed rows differs between batches")


class _Unknown:
    """The state of cells behind the rows' lengths, which no layer returns."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(
            "the last cells of an LSTM over packed rows are not known, its outputs and last states are"
        )


def _pack_padded_sequence(
    input: Any,  # noqa: A002 torch's name
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Any:
    if not isinstance(input, fx.Proxy):
        return _pack(input, lengths, batch_first, enforce_sorted)
    rows: Any = input if batch_first else input.transpose(0, 1)
    return PackedRows(rows, lengths, int(rows.size(1)))


def _pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None
) -> Any:
    if not isinstance(sequence, PackedRows):
        return _pad(sequence, batch_first, padding_value, total_length)
    rows, lengths, width = sequence.rows, sequence.lengths, sequence.width
    is_padding = (torch.arange(width) >= lengths.unsqueeze(1)).unsqueeze(2)
    rows = rows.masked_fill(is_padding, padding_value)
    if total_length is not None and int(total_length) != width:
        rows = nn.functional.pad(rows, (0, 0, 0, int(total_length) - width), value=padding_value)
    return rows if batch_first else rows.transpose(0, 1), lengths


def called_on_packed(layer: nn.Module, packed: PackedRows, initial: tuple[Any, ...], call: Any) -> Any:
    """Return what a recurrent layer returns for packed rows.

    Each of its layers and directions runs alone, one after the other: from the last place of each row backwards over
    rows that are turned around within their lengths.

    Args:
        layer: The layer.
        packed: The rows.
        initial: The first states, if they are given.
        call: Takes the layer, a name and a layer within it, and the arguments that are given to that.

    Raises:
        TypeError: It is no recurrent layer.
    """
    if not isinstance(layer, nn.RNNBase):
        raise TypeError(
            f"{type(layer).__name__} is given packed rows (a PackedSequence), which only nn.GRU, nn.LSTM and nn.RNN "
            "take"
        )
    turned = _turned_places(packed) if layer.bidirectional else None
    last_places = _last_places(packed)
    rows: Any = packed.rows
    states: list[Any] = []
    for depth in range(layer.num_layers):
        found = []
        for suffix in ("", "_reverse")[: 1 + layer.bidirectional]:
            at = len(states)
            first = () if not initial or initial[0] is None else (_of_layer(initial[0], at),)
            part = _part(layer, depth, suffix)
            given = _taken(rows, turned, part.input_size) if suffix else rows
            out, _ = call(layer, f"of_layer_{at}", part, (given, *first))
            states.append(_taken(out, last_places, _width(layer)).transpose(0, 1))
            found.append(_taken(out, turned, _width(layer)) if suffix else out)
        rows = found[0] if len(found) == 1 else torch.cat(found, dim=2)
    last = states[0] if len(states) == 1 else torch.cat(states, dim=0)
    return PackedRows(rows, packed.lengths, packed.width), (
        (last, _Unknown()) if isinstance(layer, nn.LSTM) else last
    )


def _width(layer: nn.RNNBase) -> int:
    return layer.proj_size or layer.hidden_size


def _of_layer(states: Any, at: int) -> Any:
    """Return the first states of one layer and direction, each ``[1, B, D]``."""
    if isinstance(states, (tuple, list)):
        return tuple(_of_layer(one, at) for one in states)
    return states[at : at + 1]


def _part(layer: nn.RNNBase, depth: int, suffix: str) -> nn.RNNBase:
    """Return one layer and direction of a recurrent layer, over its weights; it takes ``[B, L, D]``."""
    inside = layer.input_size if depth == 0 else _width(layer) * (2 if layer.bidirectional else 1)
    options: dict[str, Any] = {"bias": layer.bias, "batch_first": True, "device": "meta"}
    if isinstance(layer, nn.RNN):
        options["nonlinearity"] = layer.nonlinearity
    if isinstance(layer, nn.LSTM):
        options["proj_size"] = layer.proj_size
    kind: Any = next(one for one in (nn.GRU, nn.LSTM, nn.RNN) if isinstance(layer, one))
    part: nn.RNNBase = kind(inside, layer.hidden_size, 1, **options)
    for name in list(part._parameters):
        # Not by getattr, which gives placeholders while the model is traced.
        part._parameters[name] = layer._parameters[f"{name.removesuffix('0')}{depth}{suffix}"]
    part._init_flat_weights()
    return part.eval()


def _last_places(packed: PackedRows) -> Any:
    """Return the last place of each row, ``[B, 1]``."""
    return (packed.lengths.long() - 1).clamp(min=0).unsqueeze(1)


def _turned_places(packed: PackedRows) -> Any:
    """Return the places of rows that are turned around within their lengths, ``[B, L]``; padding stays."""
    places = torch.arange(packed.width)
    last = packed.lengths.long().unsqueeze(1) - 1
    return torch.where(places <= last, last - places, places)


def _taken(rows: Any, places: Any, width: int) -> Any:
    """Return the places of rows ``[B, L, width]``."""
    return rows.gather(1, places.unsqueeze(2).expand(-1, -1, width))


@contextmanager
def packing_patched(root: nn.Module) -> Iterator[None]:
    """Let a model's code pack traced rows, by whichever name its modules know torch's functions."""
    new = {_pack: _pack_padded_sequence, _pad: _pad_packed_sequence}
    scopes = {id(scope): scope for module in root.modules() for scope in _scopes(module)}
    with ExitStack() as stack:
        for scope in [*scopes.values(), vars(rnn)]:
            names = {
                name: new[one]
                for name, one in scope.items()
                if getattr(one, "__module__", "") == rnn.__name__ and one in new
            }
            stack.enter_context(patch.dict(scope, names))
        yield


def _scopes(module: nn.Module) -> Iterator[dict[str, Any]]:
    for kind in type(module).__mro__:
        if not kind.__module__.startswith("torch.") and kind.__module__ in sys.modules:
            yield vars(sys.modules[kind.__module__])
