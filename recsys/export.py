"""The exporter in Python; also ``python -m recsys.export``, the command ``recsys-export``.

Example::

    from recsys.export import ExportConfig, export_model

    export_model(model, "model.artifact", ExportConfig(targets=(("cpu", "cpu"),)))
"""

import sys
from typing import TYPE_CHECKING

from recsys.faces import face

if TYPE_CHECKING:
    from export.__main__ import main
    from export.config import ExportConfig
    from export.pipeline import export_model
    from export.publish.process import run_publisher
    from export.report import ExportReport

__all__ = ["ExportConfig", "ExportReport", "export_model", "main", "run_publisher"]

__getattr__ = face(
    __name__,
    {
        "export.config": ("ExportConfig",),
        "export.pipeline": ("export_model",),
        "export.publish.process": ("run_publisher",),
        "export.report": ("ExportReport",),
        "export.__main__": ("main",),
    },
)

if __name__ == "__main__":
    sys.exit(__getattr__("main")())
