"""Layers of plain models whose own code decides by what a batch holds: packed rows, encoders that skip padding.

Shape letters: B batch, L IDs of a history, D embedding dim.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from export.config import ExportConfig, PlainOptions
from export.pipeline import export_model
from export.plain.convert import converted
from recsys import DataType
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from tests.export.plain.checked import check_converted
from tests.export.plain.models import DIM, LENGTH, NUM_ITEMS, history

# torch's own, of its kernels.
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


class Packed(nn.Module):
    """A history through a recurrent layer, without its padding: outputs at all places, and all last states.

    Args:
        layer: The layer.
        batch_first: Whether packed rows are ``[B, L, D]``.
        is_sorted: Whether rows are packed by their lengths, and put back.
        total_length: Of what is unpacked; None for the longest of a batch.
        has_first: Whether the layer is given its first states.
    """

    def __init__(
        self,
        layer: nn.RNNBase,
        *,
        batch_first: bool = True,
        is_sorted: bool = False,
        total_length: int | None = LENGTH,
        has_first: bool = False,
    ) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.layer, self.batch_first, self.is_sorted = layer, batch_first, is_sorted
        self.total_length, self.has_first = total_length, has_first

    def forward(self, history: Tensor) -> Tensor:
        lengths = (history != 0).sum(dim=1).cpu()
        order = torch.arange(history.size(0))
        if self.is_sorted:
            lengths, order = lengths.sort(descending=True)
        rows = self.items(history)[order]
        rows = rows if self.batch_first else rows.transpose(0, 1)
        packed = pack_padded_sequence(
            rows, lengths, batch_first=self.batch_first, enforce_sorted=self.is_sorted
        )
        found, states = self.layer(packed, *self._first(history[order]))
        padded, lengths = pad_packed_sequence(
            found, batch_first=True, padding_value=0.5, total_length=self.total_length
        )
        state = states[0] if isinstance(self.layer, nn.LSTM) else states
        parts = torch.cat([padded.flatten(1), state.transpose(0, 1).flatten(1) * lengths.unsqueeze(1)], dim=1)
        return parts[order.argsort()]

    def _first(self, history: Tensor) -> tuple[object, ...]:
        if not self.has_first:
            return ()
        count = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        first = history[:, 0].float().view(1, -1, 1).expand(count, -1, DIM) / torch.arange(1, count + 1).view(
            -1, 1, 1
        )
        return ((first, first * 2),) if isinstance(self.layer, nn.LSTM) else (first,)


@pytest.mark.parametrize(
    "model",
    [
        Packed(nn.GRU(DIM, DIM, batch_first=True)),
        Packed(nn.GRU(DIM, DIM, 2, batch_first=True), batch_first=False, has_first=True),
        Packed(nn.GRU(DIM, DIM, bidirectional=True), is_sorted=True),
        Packed(nn.GRU(DIM, 5, 3, bidirectional=True, dropout=0.5)),
        Packed(nn.LSTM(DIM, DIM), is_sorted=True, batch_first=False),
        Packed(nn.LSTM(DIM, DIM, 2, batch_first=True, bidirectional=True), has_first=True),
        Packed(nn.LSTM(DIM, DIM, 2, bias=False, proj_size=3, bidirectional=True)),
        Packed(nn.RNN(DIM, DIM, 2, nonlinearity="relu", bidirectional=True), has_first=True, is_sorted=True),
    ],
    ids=lambda model: str(model.layer),
)
def test_packed_rows_are_those_within_their_lengths(model: Packed) -> None:
    torch.manual_seed(0)
    full, short = history("right"), history("right")
    full[full == 0], short[:, 1:] = 7, 0
    check_converted(model.eval(), (history("right"),), [(full,), (short,)])


def test_packed_rows_are_exported(tmp_path: Path) -> None:
    """The export compares them with the model, on rows of other lengths too."""
    config = ExportConfig(plain=PlainOptions(inputs=history("right")))
    layer = nn.GRU(DIM, DIM, 2, bidirectional=True)
    report = export_model(Packed(layer).eval(), tmp_path / "a", config)
    assert "random" in report.samples


def test_packed_rows_as_long_as_the_longest_of_a_batch_are_refused() -> None:
    with pytest.raises(ExportError, match=r"for 2 of the example's rows .* total_length"):
        converted(Packed(nn.GRU(DIM, DIM), total_length=None).eval(), PlainOptions(inputs=history("right")))


class Masked(nn.Module):
    """A history and its mask, each converted by methods, and by ``to`` and ``type``."""

    methods = ("bool", "byte", "char", "short", "int", "long", "half", "bfloat16", "float", "double")

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)

    def forward(self, history: Tensor) -> dict[str, Tensor]:
        rows, mask = self.items(history), (history != 0).float()
        found = {}
        for name in self.methods:
            dtype = getattr(torch, {"byte": "uint8", "char": "int8"}.get(name, name))
            for kind, of in (
                ("method", getattr(mask, name)()),
                ("to", mask.to(dtype)),
                ("type", mask.type(dtype)),
            ):
                found[f"{name}_{kind}"] = (rows * of.unsqueeze(-1).float()).sum(dim=1)
            numbers = getattr(rows * 8, name)()
            found[f"{name}_rows"] = numbers.float().sum(
                dim=2
            ) * numbers.ndimension() + history.nelement() // len(history)
        return found


def test_tensors_convert_by_methods(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, example = Masked().eval(), history("right")
    config = ExportConfig(
        data_type=DataType.FP32, plain=PlainOptions(inputs=example), targets=(("cpu",), ("cpu", "cpu"))
    )
    export_model(model, tmp_path / "a", config)
    ids = example[example != 0]
    for target in ("cpu", "cpu,cpu"):
        for scripted in (False, True):
            artifact = load_artifact(tmp_path / "a", target=target, scripted=scripted)
            found = artifact.forward((example != 0).sum(dim=1), ids)
            torch.testing.assert_close(found, model(example), rtol=1e-5, atol=1e-5)


class Own(nn.Module):
    """A layer of one's own over packed rows."""

    def forward(self, rows: PackedSequence) -> PackedSequence:
        return rows._replace(data=rows.data * 2)


class Decaying(nn.Module):
    """The same as a loop over places: states that fade."""

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        state, states = rows[:, 0] * 0, []
        for place in range(rows.size(1)):
            state = state * 0.5 + rows[:, place]
            states.append(state)
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, rows.size(2))
        return torch.stack(states, dim=1).gather(1, last).squeeze(1)


class OfOwn(nn.Module):
    """A history through a layer of one's own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.layer = layer

    def forward(self, history: Tensor) -> Tensor:
        lengths, rows = (history != 0).sum(dim=1), self.items(history)
        if isinstance(self.layer, Decaying):
            return self.layer(rows, lengths).sum(dim=1)
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed), total_length=LENGTH)[0].sum(dim=2)


def test_a_layer_of_ones_own_over_packed_rows_is_refused_with_what_to_write() -> None:
    message = (
        r"Own is given packed rows \(a PackedSequence\), which only nn.GRU, nn.LSTM and nn.RNN take. At .*Let this "
        r"layer take the padded tensor .*range\(x.size\(1\)\).*gather at its length - 1"
    )
    with pytest.raises(ExportError, match=message):
        converted(OfOwn(Own()).eval(), PlainOptions(inputs=history("right")))
    check_converted(OfOwn(Decaying()).eval(), (history("right"),))


class Encoded(nn.Module):
    """A history through an encoder that skips padding, and a part that runs on several devices where there are any."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(DIM) if norm else None)
        self.score = nn.DataParallel(nn.Linear(DIM, 3))

    def forward(self, history: Tensor) -> Tensor:
        found: Tensor = self.score(self.encoder(self.items(history), src_key_padding_mask=history == 0))
        return found.flatten(1)


@pytest.mark.parametrize("norm", [False, True])
def test_encoders_leave_zeros_for_padding(norm: bool) -> None:
    torch.manual_seed(0)
    some_empty = history("right")
    some_empty[::2] = 0
    check_converted(Encoded(norm=norm).eval(), (history("right"),), [(some_empty,)])


def test_an_encoder_answers_for_padding_alone(tmp_path: Path) -> None:
    """torch's own nested tensors fail on such a batch, and end the process under TorchScript."""
    torch.manual_seed(0)
    model = Encoded().eval()
    options = PlainOptions(inputs=history("right"))
    export_model(model, tmp_path / "a", ExportConfig(data_type=DataType.FP32, plain=options))
    found = load_artifact(tmp_path / "a").forward(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))
    with torch.no_grad():
        expected = model.score(torch.zeros(2, LENGTH, DIM)).flatten(1)
    torch.testing.assert_close(found["default"], expected)
