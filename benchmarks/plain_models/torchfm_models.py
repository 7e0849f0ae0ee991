"""The models of torchfm (pytorch-fm): one integer tensor ``[B, F]``, whose columns share a table by offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torchfm.model import afi, afm, afn, dcn, dfm, ffm, fm, fnfm, fnn, lr, ncf, nfm, pnn, wd, xdfm

from benchmarks.plain_models.catalogue import NUM_EXAMPLES, NUM_ROWS, PublicModel, ids

_FIELDS = [NUM_ROWS, NUM_ROWS + 3, NUM_ROWS + 1, NUM_ROWS + 7]
_MLP = {"mlp_dims": (16, 8), "dropout": 0.1}
_MLPS = {"mlp_dims": (16, 8), "dropouts": (0.1, 0.1)}


def public_models() -> list[PublicModel]:
    """Return all models of the package."""
    found: dict[str, Callable[[], Any]] = {
        "LogisticRegression": lambda: lr.LogisticRegressionModel(_FIELDS),
        "FactorizationMachine": lambda: fm.FactorizationMachineModel(_FIELDS, 8),
        "FieldAwareFactorizationMachine": lambda: ffm.FieldAwareFactorizationMachineModel(_FIELDS, 4),
        "FNN": lambda: fnn.FactorizationSupportedNeuralNetworkModel(_FIELDS, 8, **_MLP),
        "FNFM": lambda: fnfm.FieldAwareNeuralFactorizationMachineModel(_FIELDS, 4, **_MLPS),
        "NFM": lambda: nfm.NeuralFactorizationMachineModel(_FIELDS, 8, **_MLPS),
        "PNN inner": lambda: pnn.ProductNeuralNetworkModel(_FIELDS, 8, **_MLP),
        "PNN outer": lambda: pnn.ProductNeuralNetworkModel(_FIELDS, 8, **_MLP, method="outer"),
        "NCF": lambda: ncf.NeuralCollaborativeFiltering(_FIELDS, [0], [1], 8, mlp_dims=(16, 8), dropout=0.1),
        "WideDeep": lambda: wd.WideAndDeepModel(_FIELDS, 8, **_MLP),
        "DeepFM": lambda: dfm.DeepFactorizationMachineModel(_FIELDS, 8, **_MLP),
        "DCN": lambda: dcn.DeepCrossNetworkModel(_FIELDS, 8, 2, **_MLP),
        "xDeepFM": lambda: xdfm.ExtremeDeepFactorizationMachineModel(
            _FIELDS, 8, **_MLP, cross_layer_sizes=(8, 8)
        ),
        "AFM": lambda: afm.AttentionalFactorizationMachineModel(_FIELDS, 8, 8, dropouts=(0.1, 0.1)),
        "AutoInt": lambda: afi.AutomaticFeatureInteractionModel(_FIELDS, 8, 8, 2, 2, **_MLPS),
        "AFN": lambda: afn.AdaptiveFactorizationNetwork(_FIELDS, 8, 6, (16, 8), (0.1, 0.1)),
    }
    return [
        PublicModel(library="torchfm", name=name, make=partial(_made, make)) for name, make in found.items()
    ]


def _made(make: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[Any, ...]]:
    return make(), (ids(NUM_EXAMPLES, len(_FIELDS)),)
