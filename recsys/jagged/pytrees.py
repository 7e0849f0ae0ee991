"""The data types as nodes of pytrees, for ``torch.export``, ``tree_map`` and ``torch.fx``.

Leaves are the tensors that are there: values, weights, lengths (or else offsets), inverse indices. Offsets beside
lengths and lengths per key are dropped: they follow from the others, so that batches have the same structure whatever
was computed of them. Names and batch sizes per key are the node's context. Nothing is checked when a node is put
together, because a leaf may be anything then.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, serialization
from torch.fx._pytree import register_pytree_flatten_spec
from torch.utils._pytree import GetAttrKey, TreeSpec, register_pytree_node

from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.streamable import Pipelineable
from recsys.jagged.tensor import JaggedTensor
from recsys.jagged.variable_batch import RepeatedKeys, VariableBatch

_JAGGED = ("_values", "_weights", "_lengths", "_offsets")
_INVERSE = "_inverse_indices"


def _fields(jagged: Any) -> list[str]:
    dropped = "_offsets" if jagged.lengths_or_none() is not None else "_lengths"
    return [name for name in _JAGGED if name != dropped and getattr(jagged, name) is not None]


def _leaves(jagged: Any, fields: list[str]) -> list[Any]:
    found = {name: getattr(jagged, name) for name in ("_values", "_weights")}
    for name, compute in (("_lengths", jagged.lengths), ("_offsets", jagged.offsets)):
        if name in fields:
            found[name] = compute()
    if _INVERSE in fields:
        found[_INVERSE] = jagged.inverse_indices()[1]
    return [found[name] for name in fields]


def _contents(fields: list[str], leaves: Any) -> dict[str, Any]:
    return dict.fromkeys(_JAGGED) | dict(zip(fields, leaves, strict=True))


def _jagged(leaves: Any, fields: Any) -> JaggedTensor:
    made = JaggedTensor.__new__(JaggedTensor)
    vars(made).update(_contents(fields, leaves))
    return made


def _keyed_jagged_context(kjt: KeyedJaggedTensor) -> list[Any]:
    """Return fields; keys; batch sizes per key and rank; keys of inverse indices; B if no tensor's shape tells it."""
    inverse = kjt.inverse_indices_or_none()
    per_rank = [list(ranks) for ranks in kjt.stride_per_key_per_rank()]
    is_told = inverse is not None if per_rank else bool(kjt.keys())
    return [
        _fields(kjt) + ([] if inverse is None else [_INVERSE]),
        list(kjt.keys()),
        per_rank,
        None if inverse is None else list(inverse[0]),
        None if is_told else kjt.stride(),
    ]


def _keyed_jagged(leaves: Any, context: Any) -> KeyedJaggedTensor:
    fields, keys, per_rank, inverse_keys, stride = context
    contents = _contents(fields, leaves)
    inverse = contents.pop(_INVERSE, None)
    variable = VariableBatch(
        stride_per_key_per_rank=per_rank,
        stride_per_key=[sum(ranks) for ranks in per_rank],
        inverse_indices=None if inverse_keys is None else (inverse_keys, inverse),
    )
    made = KeyedJaggedTensor.__new__(KeyedJaggedTensor)
    vars(made).update(
        contents,
        _keys=list(keys) if len(set(keys)) == len(keys) else RepeatedKeys(keys),
        _variable=variable if per_rank else None,
        _stride=stride,
        _length_per_key=None,
        _jt_dict=None,
    )
    return made


def _flat_keyed_jagged(kjt: KeyedJaggedTensor) -> tuple[list[Any], Any]:
    context = _keyed_jagged_context(kjt)
    return _leaves(kjt, context[0]), context


def _flat_jagged(jagged: JaggedTensor) -> tuple[list[Any], Any]:
    fields = _fields(jagged)
    return _leaves(jagged, fields), fields


def _flat_keyed(keyed: KeyedTensor) -> tuple[list[Any], Any]:
    return [keyed.values()], [list(keyed.keys()), list(keyed.length_per_key()), keyed.key_dim()]


def _keyed(leaves: Any, context: Any) -> KeyedTensor:
    keys, length_per_key, key_dim = context
    made = KeyedTensor.__new__(KeyedTensor)
    vars(made).update(
        _values=next(iter(leaves)), _keys=list(keys), _length_per_key=list(length_per_key), _key_dim=key_dim
    )
    return made


def _keyed_leaves_of(keyed: KeyedTensor, spec: TreeSpec) -> list[Tensor]:
    """Return the columns in the order of the keys that a graph was exported with."""
    keys = spec.context[0]
    return [keyed.values() if keyed.keys() == keys else KeyedTensor.regroup([keyed], [keys])[0]]


def _register(kind: type[Any], flat: Any, made: Any, fields_of: Any, leaves_of: Any) -> None:
    def with_names(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        leaves, context = flat(node)
        return [(GetAttrKey(n), leaf) for n, leaf in zip(fields_of(context), leaves, strict=True)], context

    register_pytree_node(
        kind, flat, made, flatten_with_keys_fn=with_names, serialized_type_name=f"recsys.{kind.__name__}"
    )
    register_pytree_flatten_spec(kind, leaves_of)


_register(
    JaggedTensor, _flat_jagged, _jagged, lambda fields: fields, lambda node, spec: _leaves(node, spec.context)
)
_register(
    KeyedJaggedTensor,
    _flat_keyed_jagged,
    _keyed_jagged,
    lambda context: context[0],
    lambda node, spec: _leaves(node, spec.context[0]),
)
_register(KeyedTensor, _flat_keyed, _keyed, lambda _: ["_values"], _keyed_leaves_of)
for _kind in (JaggedTensor, KeyedJaggedTensor, KeyedTensor):
    Pipelineable.register(_kind)
# Exported programs hold their example batch, which torch loads only if it knows its types.
serialization.add_safe_globals([JaggedTensor, KeyedJaggedTensor, KeyedTensor, VariableBatch, RepeatedKeys])
