"""Training on one or more ranks: ``recsys-train``, and ``fit`` for Python.

Example::

    from recsys.train import fit

    fitted = fit("clicks.parquet", label="click", model="dcn", epochs=2)
    print(fitted.report)
    scores = fitted.model.predict(today)
    fitted.model.save("model.pt")

Names are imported on first access: options need no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.train.callbacks import Callback
    from recsys.train.fitting import Fitted, fit
    from recsys.train.model import Model
    from recsys.train.report import Report

__all__ = ["Callback", "Fitted", "Model", "Report", "fit"]

_MODULES = {
    "Callback": "recsys.train.callbacks",
    "Fitted": "recsys.train.fitting",
    "Model": "recsys.train.model",
    "Report": "recsys.train.report",
    "fit": "recsys.train.fitting",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
