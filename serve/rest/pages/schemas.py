"""JSON schemas of requests and answers, made from a model's signature and from the protocol's messages.

Shape letters: B rows of a request, N number of IDs of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from recsys.inputs.columns import vectors_in
from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput
from serve.config.models import BatchLimits, Priority
from serve.protocols.calls import MAX_REQUEST_ID_BYTES
from serve.protocols.open_inference import FLOAT, ID, LENGTH, TEXT, output_datatype
from serve.rest.row_json import INSTANCES, RECORDS, SPLIT

Json = dict[str, Any]
_NUMBER: Json = {"type": "number"}
# NaN and infinities are null in answers.
_ANSWERED: Json = {"type": ["number", "null"]}
_REQUEST_ID: Json = {
    "type": "string",
    "maxLength": MAX_REQUEST_ID_BYTES,
    "description": "Logged if the request fails; returned with tensors.",
}
_PRIORITY: Json = {
    "type": "integer",
    "minimum": 0,
    "maximum": int(max(Priority)),
    "description": "0 default, 1 served first, 2 normal, 3 served last.",
}
_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_STRING: "string",
    FieldDescriptor.CPPTYPE_FLOAT: "number",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
}


def objects(properties: Json, required: Sequence[str] = (), *, is_open: bool = False) -> Json:
    """Return the schema of an object.

    Args:
        properties: schema by name.
        required: names that must be there.
        is_open: whether it may have other properties.
    """
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema if is_open else {**schema, "additionalProperties": False}


def arrays(items: Json, num: int | None = None) -> Json:
    """Return the schema of an array, of a fixed length if ``num`` is given."""
    schema: Json = {"type": "array", "items": items}
    return schema if num is None else {**schema, "minItems": num, "maxItems": num}


def message_schema(message: Descriptor) -> Json:
    """Return the schema of what ``serve.rest.tensors_json.plain`` makes of a message."""
    return objects({field.name: _field(field) for field in message.fields})


def _field(field: FieldDescriptor) -> Json:
    kind = field.message_type
    if field.is_repeated and kind is not None and kind.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _value(kind.fields_by_name["value"])}
    return arrays(_value(field)) if field.is_repeated else _value(field)


def _value(field: FieldDescriptor) -> Json:
    if field.message_type is not None:
        return message_schema(field.message_type)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    return {"type": _SCALARS.get(field.cpp_type, "integer")}


def plain_request(signature: Signature, limits: BatchLimits) -> Json:
    """Return the schema of a request in plain JSON."""
    every = ", ".join(signature.context)
    context = _plain_inputs(signature, 1)
    context["num_rows"] = {
        "type": "integer",
        "minimum": 0,
        "maximum": limits.max_request_rows,
        "description": "B; needed where the context holds every input.",
    }
    about = "Inputs with one row, which stands for all B rows: a ranking request."
    if every:
        about += f" This model computes these once for all rows: {every}."
    schema = objects(
        {
            **_plain_inputs(signature, limits.max_request_rows),
            "context": {**objects(context), "description": about},
            "id": _REQUEST_ID,
            "priority": _PRIORITY,
        }
    )
    schema["description"] = (
        "Every input once, with one entry per row; or under context, with one row for all."
    )
    return schema


def plain_answer(signature: Signature) -> Json:
    """Return the schema of an answer in plain JSON."""
    outputs = {}
    for output in signature.outputs:
        dims = output.dims(-1)
        schema = _answered(output)
        for size in reversed(dims):
            schema = arrays(schema) if size < 0 else arrays(schema, size)
        about = ", ".join("B" if size < 0 else str(size) for size in dims)
        outputs[output.name] = {**schema, "description": f"[{about}]"}
    return objects(
        {"model": {"type": "string"}, "version": {"type": "string"}, "outputs": objects(outputs, [*outputs])},
        ["model", "version", "outputs"],
    )


def rows_request(signature: Signature, limits: BatchLimits) -> Json:
    """Return the schema of a request with an object per row."""
    fields = {field: schema for one in signature.dense for field, schema in _dense_fields(one).items()}
    for s in signature.sparse:
        # Whole numbers may be floats; a text may be digits, and a number a text that is hashed.
        value: Json = {"type": ["string", "number", "boolean", "null"]}
        # Lists may have nulls too, which are no values: their sizes say nothing.
        fields[s.name] = {**_or_bare(value), "description": _about(signature, s)}
        if s.weighted:
            fields[f"{s.name}.weights"] = {**_or_bare(_NUMBER), "description": "One weight per ID."}
    forms = []
    for name in (INSTANCES, RECORDS):
        rows = {"type": "array", "items": {"type": "object"}, "maxItems": limits.max_request_rows}
        forms.append(objects({name: rows}, [name], is_open=True))
    split = {
        "columns": arrays({"type": "string"}),
        "data": {**arrays({"type": "array"}), "maxItems": limits.max_request_rows},
        "index": {"type": "array"},
    }
    forms.append(objects({SPLIT: objects(split, ["columns", "data"])}, [SPLIT], is_open=True))
    row = objects(fields, [*fields], is_open=True)
    whole = objects({name: arrays(row) for name in (INSTANCES, RECORDS)}, is_open=True)
    with_context = objects({"context": objects(fields, is_open=True)}, ["context"], is_open=True)
    return {
        "description": "An object per row; under context, the fields that all rows share. Other fields are ignored.",
        "allOf": [{"oneOf": forms}, {"anyOf": [whole, with_context]}],
    }


def rows_answer(signature: Signature) -> Json:
    """Return the schema of an answer to a request with an object per row."""
    outputs = {}
    for output in signature.outputs:
        schema = _answered(output)
        for size in reversed(output.dims(-1)[1:]):
            schema = arrays(schema) if size < 0 else arrays(schema, size)
        outputs[output.name] = schema
    of_row = objects(outputs, [*outputs]) if len(outputs) > 1 else next(iter(outputs.values()))
    return objects({"predictions": arrays(of_row)}, ["predictions"])


def _dense_fields(dense: DenseInput) -> Json:
    number: Json = {"type": ["number", "boolean", *(["null"] if dense.missing else [])]}
    vectors = vectors_in(dense.columns)
    if vectors:
        elements = {f"{name}[{i}]" for name, size in vectors.items() for i in range(size)}
        alone = {name: number for name in dense.columns if name not in elements}
        return {**alone, **{name: arrays(number, size) for name, size in vectors.items()}}
    if dense.columns or dense.width == 1:
        return {name: {"anyOf": [number, arrays(number, 1)]} for name in dense.columns or (dense.name,)}
    return {dense.name: arrays(number, dense.width)}


def tensor_request(signature: Signature) -> Json:
    """Return the schema of a request with tensors."""
    tensors = [_tensor(d.name, FLOAT, _dense_shape(d), f"Dense, [B, {d.width}].") for d in signature.dense]
    for s in signature.sparse:
        tensors += _sparse_tensors(signature, s)
    wanted = objects(
        {
            "name": {"enum": [output.name for output in signature.outputs]},
            "parameters": objects({"binary_data": {"type": "boolean"}}, is_open=True),
        },
        ["name"],
        is_open=True,
    )
    parameters = {
        "priority": _PRIORITY,
        "timeout": {
            "type": "integer",
            "minimum": 0,
            "description": "Microseconds that the request may wait; 0 for no limit.",
        },
        "context": {
            "type": "string",
            "description": "Names of inputs, with commas between them, that have one row which stands for all B rows.",
        },
        "binary_data_output": {
            "type": "boolean",
            "description": "Whether outputs come as binary tensors after the JSON.",
        },
    }
    schema = objects(
        {
            "id": _REQUEST_ID,
            "parameters": objects(parameters, is_open=True),
            "inputs": {**arrays({"anyOf": tensors}), "description": "Every input once, in any order."},
            "outputs": {**arrays(wanted), "description": "The outputs to send; all where it is missing."},
        },
        ["inputs"],
        is_open=True,
    )
    schema["description"] = (
        "A sparse input is NAME.values, all IDs row by row, with NAME.lengths, the number of IDs of each row; or "
        "NAME alone, where every row has as many."
    )
    return schema


def tensor_answer(signature: Signature) -> Json:
    """Return the schema of an answer with tensors."""
    return objects(
        {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": _REQUEST_ID,
            "outputs": arrays({"anyOf": [_answer_tensor(output) for output in signature.outputs]}),
        },
        ["model_name", "model_version", "outputs"],
    )


def _answered(output: Output) -> Json:
    """Return the schema of a number of an answer."""
    return {"type": "integer", "format": "int64"} if output.is_integer else _ANSWERED


def _answer_tensor(output: Output) -> Json:
    datatype = output_datatype(output)
    shape = _shape([_size() if size < 0 else {"const": size} for size in output.dims(-1)])
    tensor = _tensor(output.name, datatype, shape, values=_answered(output))
    tensor["properties"]["datatype"] = {"const": datatype}
    return tensor


def ids_text(sparse: SparseInput) -> str:
    """Return which IDs or texts a sparse input takes."""
    if sparse.strings:
        return f"any; texts are hashed by {sparse.strings}"
    if sparse.id_limit is not None:
        return f"0 to {sparse.id_limit - 1}"
    policies = {table.id_policy for table in sparse.tables}
    if policies == {IdPolicy.MAPPED}:
        return "any; the model maps them to rows"
    if IdPolicy.FMIX64 in policies:
        return "any; hashed to rows by fmix64"
    return "any; " + ("taken modulo the rows" if IdPolicy.HASH in policies else "others than rows read zeros")


def most_text(sparse: SparseInput) -> str:
    """Return how many IDs a row of a sparse input has at most, with a comma before; empty for any number."""
    return "" if sparse.max_ids is None else f", at most {sparse.max_ids}"


def _plain_inputs(signature: Signature, max_rows: int) -> Json:
    dense = {d.name: _plain_dense(d, max_rows) for d in signature.dense}
    sparse = {s.name: _plain_sparse(signature, s, max_rows) for s in signature.sparse}
    weights = {
        s.name: {**_rows(_or_bare(_NUMBER), max_rows), "description": "One weight per ID."}
        for s in signature.sparse
        if s.weighted
    }
    parts = {"dense": dense, "sparse": sparse, "weights": weights}
    return {part: objects(inputs) for part, inputs in parts.items() if inputs}


def _plain_dense(dense: DenseInput, max_rows: int) -> Json:
    # True is 1 and false 0.
    number: Json = {"type": ["number", "boolean", *(["null"] if dense.missing else [])]}
    row = arrays(number, dense.width)
    forms = [row, *([number] if dense.width == 1 else [])]
    if dense.columns:
        required = () if dense.missing else dense.columns
        forms.append(objects(dict.fromkeys(dense.columns, number), required))
    about = f"[B, {dense.width}]" + (f": {', '.join(dense.columns)}." if dense.columns else "")
    return {**_rows({"anyOf": forms} if len(forms) > 1 else row, max_rows), "description": about}


def _plain_sparse(signature: Signature, sparse: SparseInput, max_rows: int) -> Json:
    row = _or_bare(_id_schema(sparse), sparse.max_ids)
    return {**_rows(row, max_rows), "description": _about(signature, sparse)}


def _rows(items: Json, max_rows: int) -> Json:
    return {**arrays(items), "maxItems": max_rows}


def _or_bare(item: Json, most: int | None = None) -> Json:
    """Return the schema of a row: a list, of at most so many, or a bare number, which is a list of one."""
    return {"anyOf": [arrays(item) if most is None else {**arrays(item), "maxItems": most}, item]}


def _id_schema(sparse: SparseInput) -> Json:
    schema: Json = {"type": "integer", "format": "int64"}
    if sparse.id_limit is not None:
        schema = {**schema, "minimum": 0, "maximum": sparse.id_limit - 1}
    # A text is hashed, or is a number in digits.
    text: Json = (
        {"type": "string", "minLength": 1} if sparse.strings else {"type": "string", "pattern": "^-?[0-9]+$"}
    )
    return {"anyOf": [schema, text]}


def _about(signature: Signature, sparse: SparseInput) -> str:
    names = signature.table_names
    tables = ", ".join(f"{names[table.name]} ({table.num_embeddings:,} rows)" for table in sparse.tables)
    what = "texts or IDs" if sparse.strings else "IDs"
    return (
        f"A list of {what} per row{most_text(sparse)}; {what}: {ids_text(sparse)}. Pooling: {sparse.pooling}. "
        f"Table: {tables}."
    )


def _sparse_tensors(signature: Signature, sparse: SparseInput) -> list[Json]:
    ids = _id_schema(sparse)
    by_row = {"type": "array", "items": _size(), "minItems": 1, "maxItems": 2}
    length = _size() if sparse.max_ids is None else {**_size(), "maximum": sparse.max_ids}
    tensors = [
        _tensor(f"{sparse.name}.values", ID, _shape([_size()]), f"[N]. {_about(signature, sparse)}", ids),
        _tensor(f"{sparse.name}.lengths", LENGTH, _shape([_size()]), "[B], IDs of each row.", length),
        _tensor(sparse.name, ID, by_row, "[B, L] or [B], where every row has as many IDs.", ids),
    ]
    if sparse.weighted:
        tensors.append(_tensor(f"{sparse.name}.weights", FLOAT, by_row, "One weight per ID."))
    return tensors


def _tensor(name: str, datatype: str, shape: Json, about: str = "", values: Json = _NUMBER) -> Json:
    """Return the schema of a tensor: its numbers as a flat or nested list, or as bytes after the JSON."""
    nested = {"anyOf": [values, {"type": "array"}]}
    datatypes = {"enum": [ID, LENGTH, TEXT]} if datatype in (ID, LENGTH) else {"const": datatype}
    schema = objects(
        {
            "name": {"const": name},
            "datatype": {**datatypes, "default": datatype},
            "shape": shape,
            "data": arrays(nested),
            "parameters": objects({"binary_data_size": _size()}, is_open=True),
        },
        ["name", "datatype", "shape"],
        is_open=True,
    )
    return {**schema, "description": about} if about else schema


def _dense_shape(dense: DenseInput) -> Json:
    schema = _shape([_size(), {"const": dense.width}])
    return {**schema, "minItems": 1} if dense.width == 1 else schema


def _shape(sizes: list[Json]) -> Json:
    return {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}


def _size() -> Json:
    return {"type": "integer", "minimum": 0}
