"""The sharded core: jagged data types, embedding collections, quantized rows, sharding."""

from recsys.configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged import JaggedTensor
from recsys.keyed import KeyedTensor
from recsys.keyed_jagged import KeyedJaggedTensor
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection

__all__ = [
    "DataType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "QuantEmbeddingBagCollection",
    "QuantEmbeddingCollection",
]
