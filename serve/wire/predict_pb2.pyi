from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]

class IdPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ID_POLICY_UNSPECIFIED: _ClassVar[IdPolicy]
    ID_POLICY_REJECT: _ClassVar[IdPolicy]
    ID_POLICY_HASH: _ClassVar[IdPolicy]
    ID_POLICY_ZERO: _ClassVar[IdPolicy]
    ID_POLICY_MAPPED: _ClassVar[IdPolicy]
    ID_POLICY_FMIX64: _ClassVar[IdPolicy]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_SUM: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_NONE: _ClassVar[Pooling]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_HIGH: Priority
PRIORITY_NORMAL: Priority
PRIORITY_LOW: Priority
ID_POLICY_UNSPECIFIED: IdPolicy
ID_POLICY_REJECT: IdPolicy
ID_POLICY_HASH: IdPolicy
ID_POLICY_ZERO: IdPolicy
ID_POLICY_MAPPED: IdPolicy
ID_POLICY_FMIX64: IdPolicy
POOLING_UNSPECIFIED: Pooling
POOLING_SUM: Pooling
POOLING_MEAN: Pooling
POOLING_NONE: Pooling

class PredictRequest(_message.Message):
    __slots__ = ("model", "request_id", "num_rows", "dense", "sparse", "context_dense", "context_sparse", "version", "priority")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DENSE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SPARSE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    num_rows: int
    dense: _containers.RepeatedCompositeFieldContainer[DenseInput]
    sparse: _containers.RepeatedCompositeFieldContainer[SparseInput]
    context_dense: _containers.RepeatedCompositeFieldContainer[DenseInput]
    context_sparse: _containers.RepeatedCompositeFieldContainer[SparseInput]
    version: str
    priority: Priority
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., num_rows: _Optional[int] = ..., dense: _Optional[_Iterable[_Union[DenseInput, _Mapping]]] = ..., sparse: _Optional[_Iterable[_Union[SparseInput, _Mapping]]] = ..., context_dense: _Optional[_Iterable[_Union[DenseInput, _Mapping]]] = ..., context_sparse: _Optional[_Iterable[_Union[SparseInput, _Mapping]]] = ..., version: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class DenseInput(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...

class SparseInput(_message.Message):
    __slots__ = ("name", "lengths", "values", "weights", "strings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    lengths: bytes
    values: bytes
    weights: bytes
    strings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., lengths: _Optional[bytes] = ..., values: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., strings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("outputs", "model", "version")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    model: str
    version: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: PredictResponse
    error: StreamError
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[PredictResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "dims", "values", "int64_values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INT64_VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    int64_values: bytes
    def __init__(self, name: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ..., int64_values: _Optional[bytes] = ...) -> None: ...

class GetModelMetadataRequest(_message.Message):
    __slots__ = ("model", "version", "num_examples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    num_examples: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., num_examples: _Optional[int] = ...) -> None: ...

class ModelMetadata(_message.Message):
    __slots__ = ("model", "version", "target", "dense", "sparse", "outputs", "limits", "artifact", "context", "deltas", "examples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    target: str
    dense: _containers.RepeatedCompositeFieldContainer[DenseSignature]
    sparse: _containers.RepeatedCompositeFieldContainer[SparseSignature]
    outputs: _containers.RepeatedCompositeFieldContainer[OutputSignature]
    limits: RequestLimits
    artifact: ArtifactVersions
    context: _containers.RepeatedScalarFieldContainer[str]
    deltas: _containers.RepeatedScalarFieldContainer[str]
    examples: PredictRequest
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., target: _Optional[str] = ..., dense: _Optional[_Iterable[_Union[DenseSignature, _Mapping]]] = ..., sparse: _Optional[_Iterable[_Union[SparseSignature, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[OutputSignature, _Mapping]]] = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ..., artifact: _Optional[_Union[ArtifactVersions, _Mapping]] = ..., context: _Optional[_Iterable[str]] = ..., deltas: _Optional[_Iterable[str]] = ..., examples: _Optional[_Union[PredictRequest, _Mapping]] = ...) -> None: ...

class DenseSignature(_message.Message):
    __slots__ = ("name", "width", "missing", "columns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    width: int
    missing: bool
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., width: _Optional[int] = ..., missing: bool = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class SparseSignature(_message.Message):
    __slots__ = ("name", "pooling", "weighted", "tables", "id_limit", "strings", "num_ids", "same_lengths_as", "separator", "max_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ID_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_IDS_FIELD_NUMBER: _ClassVar[int]
    SAME_LENGTHS_AS_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_FIELD_NUMBER: _ClassVar[int]
    MAX_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pooling: Pooling
    weighted: bool
    tables: _containers.RepeatedCompositeFieldContainer[TableUse]
    id_limit: int
    strings: str
    num_ids: int
    same_lengths_as: str
    separator: str
    max_ids: int
    def __init__(self, name: _Optional[str] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., weighted: bool = ..., tables: _Optional[_Iterable[_Union[TableUse, _Mapping]]] = ..., id_limit: _Optional[int] = ..., strings: _Optional[str] = ..., num_ids: _Optional[int] = ..., same_lengths_as: _Optional[str] = ..., separator: _Optional[str] = ..., max_ids: _Optional[int] = ...) -> None: ...

class TableUse(_message.Message):
    __slots__ = ("name", "num_embeddings", "id_policy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ID_POLICY_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_embeddings: int
    id_policy: IdPolicy
    def __init__(self, name: _Optional[str] = ..., num_embeddings: _Optional[int] = ..., id_policy: _Optional[_Union[IdPolicy, str]] = ...) -> None: ...

class OutputSignature(_message.Message):
    __slots__ = ("name", "shape", "dtype", "dims")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("max_rows", "max_ids", "max_message_bytes")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    max_ids: int
    max_message_bytes: int
    def __init__(self, max_rows: _Optional[int] = ..., max_ids: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class ArtifactVersions(_message.Message):
    __slots__ = ("format", "torch", "fbgemm", "digest")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    FBGEMM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    format: str
    torch: str
    fbgemm: str
    digest: str
    def __init__(self, format: _Optional[str] = ..., torch: _Optional[str] = ..., fbgemm: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...
