"""Quantization of a model's collections in place, by TorchRec's names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from recsys.configs import QuantConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.modules.feature_processors import FeatureProcessedEmbeddingBagCollection
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection

_QUANTIZED: dict[type[nn.Module], type[nn.Module]] = {
    EmbeddingBagCollection: QuantEmbeddingBagCollection,
    EmbeddingCollection: QuantEmbeddingCollection,
}


def quantize_embeddings(  # noqa: PLR0913  (TorchRec's arguments)
    module: nn.Module,
    dtype: torch.dtype,
    inplace: bool,
    additional_qconfig_spec_keys: list[type[nn.Module]] | None = None,
    additional_mapping: dict[type[nn.Module], type[nn.Module]] | None = None,
    output_dtype: torch.dtype = torch.float,
    per_table_weight_dtype: dict[str, torch.dtype] | None = None,
) -> nn.Module:
    """Replace a model's ``EmbeddingBagCollection``s, and modules of further types, by quantized ones.

    Args:
        module: The model; a collection that is the model itself is returned quantized.
        dtype: The dtype of the rows: float32, float16, int8 (or qint8, quint8), quint4x2 or quint2x4.
        inplace: Change the model; False changes a copy.
        additional_qconfig_spec_keys: Further types to replace; each must be in ``additional_mapping``, or be an
            ``EmbeddingCollection``.
        additional_mapping: Types, and those that take their places, by ``from_float``.
        output_dtype: The dtype of the outputs.
        per_table_weight_dtype: Rows' dtypes by table.

    Returns:
        The model.

    Raises:
        ValueError: A dtype has no row format, or a type has no quantized one.
    """
    mapping: dict[type[nn.Module], type[nn.Module]] = {EmbeddingBagCollection: QuantEmbeddingBagCollection}
    mapping |= additional_mapping or {}
    for kind in additional_qconfig_spec_keys or ():
        if kind not in mapping and kind not in _QUANTIZED:
            raise ValueError(
                f"additional_qconfig_spec_keys: got {kind.__name__}, expected its quantized type in additional_mapping"
            )
        mapping.setdefault(kind, _QUANTIZED.get(kind, kind))
    model = module if inplace else copy.deepcopy(module)
    config = _config(dtype, output_dtype, per_table_weight_dtype)
    return _replaced(model, mapping, lambda _: config)


def quantize_inference_model(
    model: nn.Module,
    quantization_mapping: dict[str, type[nn.Module]] | None = None,
    per_table_weight_dtype: dict[str, torch.dtype] | None = None,
    fp_weight_dtype: torch.dtype = torch.int8,
    quantization_dtype: torch.dtype = torch.int8,
    output_dtype: torch.dtype = torch.float,
) -> nn.Module:
    """Replace a model's collections by quantized ones, in place.

    Args:
        model: The model; a collection that is the model itself is returned quantized.
        quantization_mapping: Types by their full names (``torch.typename``), and those that take their places, by
            ``from_float``; None takes both kinds of collections. As in TorchRec, pooled ones are always replaced.
        per_table_weight_dtype: Rows' dtypes by table.
        fp_weight_dtype: The dtype of the rows of tables behind feature processors.
        quantization_dtype: The dtype of all other rows: float32, float16, int8, quint4x2 or quint2x4.
        output_dtype: The dtype of the outputs.

    Returns:
        The model.

    Raises:
        ValueError: A dtype has no row format.
    """
    by_name = quantization_mapping or {
        torch.typename(kind): quantized for kind, quantized in _QUANTIZED.items()
    }
    mapping: dict[type[nn.Module], type[nn.Module]] = {EmbeddingBagCollection: QuantEmbeddingBagCollection}
    mapping |= {type(m): by_name[torch.typename(m)] for m in model.modules() if torch.typename(m) in by_name}
    plain = _config(quantization_dtype, output_dtype, per_table_weight_dtype)
    processed = _config(fp_weight_dtype, output_dtype, per_table_weight_dtype)
    return _replaced(
        model,
        mapping,
        lambda parent: processed if isinstance(parent, FeatureProcessedEmbeddingBagCollection) else plain,
    )


def _config(
    dtype: torch.dtype, output_dtype: torch.dtype, by_table: dict[str, torch.dtype] | None
) -> QuantConfig:
    return QuantConfig(
        lambda: SimpleNamespace(dtype=output_dtype), lambda: SimpleNamespace(dtype=dtype), by_table
    )


def _replaced(
    model: nn.Module, mapping: Mapping[type[nn.Module], type[nn.Module]], config_of: Any
) -> nn.Module:
    """Replace every module of a mapped type; a module that is in several places is quantized once."""
    if type(model) in mapping:
        return _quantized(model, mapping[type(model)], config_of(None))
    made: dict[nn.Module, nn.Module] = {}
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in mapping
    ]
    for parent, name, child in places:
        if child not in made:
            made[child] = _quantized(child, mapping[type(child)], config_of(parent))
        parent._modules[name] = made[child]
    return model


def _quantized(module: nn.Module, kind: type[nn.Module], config: QuantConfig) -> nn.Module:
    had = vars(module).get("qconfig")
    module.qconfig = config  # type: ignore[assignment]
    try:
        made: nn.Module = cast(Any, kind).from_float(module)
    finally:
        if had is None:
            del module.qconfig
        else:
            module.qconfig = had
    return made.train(module.training)
