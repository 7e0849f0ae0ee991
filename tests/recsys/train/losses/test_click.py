"""Losses of labels against torch's and against the papers' formulas, written out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional

from recsys import KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.export import export_model
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.models.click import MOST_LOG_VARIANCE, LabelUncertainty
from recsys.train.fitting import fit
from recsys.train.losses.click import ClickLoss
from recsys.train.losses.negatives import candidate_losses
from recsys.train.stepping.tasks import LogitsOf, trained_form


def _batch(num_rows: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(num_rows, 2), (torch.rand(num_rows, 2) < 0.4).float()


def test_the_weight_of_positives_is_torchs() -> None:
    logits, labels = _batch()
    expected = functional.binary_cross_entropy_with_logits(
        logits, labels, pos_weight=torch.tensor(3.5), reduction="none"
    )
    torch.testing.assert_close(ClickLoss(positive_weight=3.5).of(logits, labels), expected)


def test_the_focal_loss_is_the_papers() -> None:
    logits, labels = _batch()
    chance = torch.where(labels > 0, logits.sigmoid(), 1 - logits.sigmoid())
    expected = -((1 - chance) ** 2.5) * chance.log()
    torch.testing.assert_close(ClickLoss(kind="focal", focal_gamma=2.5).of(logits, labels), expected)
    plain = ClickLoss(kind="focal", focal_gamma=0.0).of(logits, labels)
    torch.testing.assert_close(plain, ClickLoss().of(logits, labels))


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
def test_a_row_that_is_sure_and_right_has_no_focal_loss_and_no_gradient(gamma: float) -> None:
    logits = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    loss = ClickLoss(kind="focal", focal_gamma=gamma).of(logits, torch.tensor([[1.0], [0.0]]))
    loss.sum().backward()
    assert logits.grad is not None
    assert (loss.abs().sum(), logits.grad.abs().sum()) == (0, 0)


@pytest.mark.parametrize("kind", ["cross-entropy", "focal", "bpr"])
def test_a_weight_counts_as_so_many_rows(kind: str) -> None:
    logits, labels = _batch()
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 1.0] * 2)
    loss = ClickLoss(kind=kind)
    times = weights.long()
    repeated = loss.of(logits.repeat_interleave(times, 0), labels.repeat_interleave(times, 0))
    found = loss.of(logits, labels, weights=weights)
    torch.testing.assert_close(found.sum(dim=0), repeated.sum(dim=0))
    nothing = loss.of(logits, labels, weights=torch.zeros(12))
    assert torch.equal(nothing, torch.zeros_like(nothing))


def test_bpr_is_the_mean_over_pairs() -> None:
    logits, labels = _batch()
    expected = torch.zeros_like(logits)
    for label in range(2):
        others = [i for i in range(12) if not labels[i, label]]
        for i in range(12):
            if labels[i, label]:
                pairs = [-(logits[i, label] - logits[j, label]).sigmoid().log() for j in others]
                expected[i, label] = torch.stack(pairs).mean()
    torch.testing.assert_close(ClickLoss(kind="bpr").of(logits, labels), expected)
    assert ClickLoss(kind="bpr").of(logits, torch.ones_like(labels)).abs().sum() == 0
    assert ClickLoss(kind="bpr").of(logits[:0], labels[:0]).shape == (0, 2)


def test_labels_are_weighted_by_numbers_and_by_uncertainty() -> None:
    logits, labels = _batch()
    plain = ClickLoss().of(logits, labels)
    fixed = ClickLoss(label_weights=(1.0, 0.25)).of(logits, labels)
    torch.testing.assert_close(fixed, plain * torch.tensor([1.0, 0.25]))
    # Kendall's 1 / sigma^2 L + log sigma, whose least value is at sigma^2 = 2 L.
    log_variances = torch.tensor([0.3, -1.2], requires_grad=True)
    sigma = torch.exp(log_variances / 2)
    torch.testing.assert_close(
        ClickLoss().of(logits, labels, log_variances), plain / sigma**2 + torch.log(sigma)
    )
    optimizer = torch.optim.SGD([log_variances], lr=0.5)
    for _ in range(300):
        optimizer.zero_grad()
        ClickLoss().of(logits, labels, log_variances).mean().backward()
        optimizer.step()
    torch.testing.assert_close(log_variances.detach().exp(), 2 * plain.mean(dim=0), rtol=1e-3, atol=1e-4)


def test_bpr_is_recboles_on_the_same_pairs() -> None:
    """RecBole's is the mean of ``-log(1e-10 + sigmoid(positive - negative))`` over pairs that it draws."""
    torch.manual_seed(0)
    logits = torch.randn(9, 1, dtype=torch.float64) * 3
    labels = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1], dtype=torch.float64).unsqueeze(1)
    positives, negatives = labels[:, 0].nonzero()[:, 0], (1 - labels[:, 0]).nonzero()[:, 0]

    def ours(scores: torch.Tensor) -> torch.Tensor:
        return ClickLoss(kind="bpr").of(scores, labels).sum() / len(positives)

    def items(scores: torch.Tensor) -> torch.Tensor:
        candidates = scores[negatives, 0].expand(len(positives), -1)
        left_out = torch.zeros_like(candidates, dtype=torch.bool)
        return candidate_losses(scores[positives, 0], candidates, left_out, "bpr").mean()

    def recboles(scores: torch.Tensor) -> torch.Tensor:
        every = torch.cartesian_prod(positives, negatives)
        return -(1e-10 + (scores[every[:, 0], 0] - scores[every[:, 1], 0]).sigmoid()).log().mean()

    expected = _with_gradient(recboles, logits)
    for loss in (ours, items):
        for found, theirs in zip(_with_gradient(loss, logits), expected, strict=True):
            torch.testing.assert_close(found, theirs, rtol=1e-6, atol=1e-9)
    # Its 1e-10 ends the gradient of pairs in the wrong order by more than 23; ours goes on.
    far = logits - 60 * labels
    assert _with_gradient(recboles, far)[1].abs().max() < 1e-9
    assert _with_gradient(ours, far)[1].abs().max() > 0.1


def _with_gradient(
    loss: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    of = scores.clone().requires_grad_()
    found = loss(of)
    found.backward()  # type: ignore[no-untyped-call]
    assert of.grad is not None
    return found.detach(), of.grad


def test_uncertainty_is_bounded_and_comes_back() -> None:
    """A label without any loss would have a variance of 0, and a factor without end."""
    uncertainty = LabelUncertainty(2)
    optimizer = torch.optim.SGD(uncertainty.parameters(), lr=0.5)
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def step(logits: torch.Tensor) -> torch.Tensor:
        log_variances = uncertainty.bounded()
        factors = torch.exp(-log_variances.detach())
        optimizer.zero_grad()
        ClickLoss().of(logits, labels, log_variances).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return factors

    sure = (2 * labels - 1) * torch.tensor([1e3, -1e12])  # never wrong; always wrong
    for _ in range(300):
        factors = step(sure)
    torch.testing.assert_close(factors, torch.tensor([1e3, 1e-3]))
    for _ in range(120):  # the first label has a loss again, the second has none
        factors = step(-sure)
    assert factors[0] < 1 < factors[1]


def test_uncertainty_is_learned_and_the_model_is_exported(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(30, size=2000)
    # The first label is decided by the row, the second is a coin.
    table = pa.table({"item": rows, "a": rows % 2, "b": generator.integers(2, size=2000)})
    schema = Schema(
        labels=(LabelColumn(name="a"), LabelColumn(name="b")),
        dense=(),
        tables=(TableSpec(name="items", num_embeddings=30, feature_names=("item",)),),
    )
    fitted = fit(
        table, schema=schema, model="mmoe", learn_label_weights=True, epochs=3, learning_rate=0.01,
        batch_size=64, callbacks=[],
    )  # fmt: skip
    a, b = fitted.model.checkpoint.state_dict["uncertainty.log_variances"].exp().tolist()
    assert a < 0.8 < 1 < b
    trained = trained_form(fitted.model.module, LogitsOf)
    assert trained.uncertainty is not None
    trained.uncertainty.log_variances.data[:] = torch.tensor([-50.0, 50.0])
    item = KeyedJaggedTensor(["item"], torch.tensor([3]), lengths=torch.tensor([1]))
    assert trained(None, item)[1].tolist() == pytest.approx([-MOST_LOG_VARIANCE, MOST_LOG_VARIANCE])
    export_model(fitted.model.module, tmp_path / "m.artifact")
    signature = load_artifact(tmp_path / "m.artifact").signature
    assert [output.name for output in signature.outputs] == ["a", "b"]
