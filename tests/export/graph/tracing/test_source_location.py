"""An export that fails names the user's file and line, the layer, and what to change there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.graph.tracing.source_location import place_of, source_locations
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.errors import ExportError, VerificationError
from recsys.scripting import torchscript
from tests.support.helpers import bag


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])
        self.layer = nn.Linear(3, 4)
        self.over = nn.Sequential(nn.Linear(5, 4))
        self.places = nn.Embedding(3, 4)


class _Branch(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        if dense.sum() > 0:  # here
            return self.ebc(features).values()
        return self.layer(dense)


class _Loop(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found = self.ebc(features).values()
        for row in self.layer(dense):  # here
            found = found + row
        return found


class _Factory(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        ones = torch.tensor([1] * dense.size(0))  # here
        found: Tensor = self.layer(dense) + self.ebc(features).values() * ones.unsqueeze(1)
        return found


class _DenseIds(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        return found + self.places(dense)[:, 0]  # here


class _Unequal(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        return found * features["f"].values().reshape(-1, 1, 1000).sum()  # here


class _Keyword(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        padded = features["f"].to_padded_dense(desired_width=3)  # type: ignore[call-arg]  # here
        return found + padded.sum(dim=1, keepdim=True)


class _Number(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        longest = int(features.lengths().max())  # here
        found: Tensor = self.layer(dense) + self.ebc(features).values() * longest
        return found


class _Assignment(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        found[found < 0] = 0  # here
        return found


class _Width(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.over(self.ebc(features).values())  # here
        return found


class _Index(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        return found + self.places(features["f"].lengths())  # here


class _Key(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features)["nothing"]  # here
        return found


class _DecidesByWidth(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        if dense.size(1) > dense.size(0):  # here
            return self.ebc(features).values()
        return self.layer(dense)


class _Checks(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.ebc(features).values()
        if str(found.size(1)) != "4":
            raise ValueError(f"got {dense.size(0)} rows")  # here
        return found + self.layer(dense)


class _Compiled(_Model):
    def __init__(self) -> None:
        super().__init__()
        # From text: there is no Python of it.
        code = "def twice(x: Dict[str, Tensor]):\n    return x['a'] * 2\n"
        with torchscript.quiet():
            self.twice: Any = torch.jit.CompilationUnit(code).twice

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.twice({"a": self.layer(dense)})  # here
        return found + self.ebc(features).values()


LINES = Path(__file__).read_text().splitlines()


def line_of(model: type[nn.Module]) -> int:
    start = LINES.index(f"class {model.__name__}(_Model):")
    return next(i for i, line in enumerate(LINES[start:], start + 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("model", "layer", "what"),
    [
        (
            _Branch,
            "",
            r"Choose between values with torch.where(?!.*dense-width).*guards: .*clamp.*`if self.training:`",
        ),
        (_DecidesByWidth, "", "Say how wide the argument is by --dense-width NAME=N"),
        (_Checks, "", "A check of the model's own fails for traced values"),
        (_Compiled, "", "in the factory's module, replace it where forward looks it up"),
        (_Loop, "", "Split it with unbind"),
        (_Factory, "", r"Make a tensor of a traced size by torch.full\(\(x.size\(0\),\), k\)"),
        (_DenseIds, r", layer 'places' \(Embedding\(3, 4\)\)", r"make IDs of one by x.squeeze\(1\).long\(\)"),
        (_Unequal, "", "give --samples with requests as the model expects them"),
        (_Keyword, "", "the arguments of TorchRec 1.8"),
        (_Number, "", "Work on whole tensors"),
        (_Assignment, "", "Make a new tensor with torch.where"),
        (_Width, r", layer 'over\.0' \(Linear\(in_features=5, ", "give another with --dense-width NAME=N"),
        (_Index, r", layer 'places' \(Embedding\(3, 4\)\)", "An ID or a position lies beyond the rows"),
        (_Key, "", ""),
    ],
)
def test_place_and_what_to_change(
    tmp_path: Path, model: Callable[[], nn.Module], layer: str, what: str
) -> None:
    at = rf"test_source_location\.py:{line_of(model)} in {model.__name__}\.forward{layer}"
    with pytest.raises(ExportError, match=rf"(?s)At \S*{at}.*{what}"):
        export_model(model(), tmp_path / "a")


def test_errors_outside_of_the_model_have_no_place() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) + torch.zeros(3)
    caught.value.__traceback__ = None
    assert place_of(caught.value) == ""


def test_a_failing_graph_is_an_error_of_the_verification() -> None:
    @torch.jit.script
    def fails(x: Tensor) -> Tensor:
        return x.reshape([0, -1])

    message = r"graph failed at `.*reshape.*`: RuntimeError: cannot reshape"
    with pytest.raises(VerificationError, match=message), source_locations():
        fails(torch.zeros(0, 2))
    with pytest.raises(RuntimeError, match="other"), source_locations():
        raise RuntimeError("other")
