"""TorchRec, a test-only peer: modules that import this skip where it is not installed."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest

with warnings.catch_warnings():
    # TorchRec 1.8 imports what its own dependencies have deprecated.
    warnings.simplefilter("ignore")
    torchrec: ModuleType = pytest.importorskip("torchrec", reason="torchrec is not installed (group: peer)")
    from torchrec.inference import modules as _inference
    from torchrec.modules import embedding_configs as configs

quantize_inference_model: Any = _inference.quantize_inference_model
shard_quant_model: Any = _inference.shard_quant_model
__all__ = ["configs", "quantize_inference_model", "shard_quant_model", "torchrec"]
