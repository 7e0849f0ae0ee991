from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_AVAILABLE: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_AVAILABLE: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_FAILED: ModelState

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("model", "routing", "serving", "versions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    routing: Routing
    serving: str
    versions: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, model: _Optional[str] = ..., routing: _Optional[_Union[Routing, _Mapping]] = ..., serving: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class Routing(_message.Message):
    __slots__ = ("serve", "canary", "canary_percent", "shadow", "shadow_percent", "canary_key")
    SERVE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    CANARY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    SHADOW_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CANARY_KEY_FIELD_NUMBER: _ClassVar[int]
    serve: str
    canary: str
    canary_percent: float
    shadow: str
    shadow_percent: float
    canary_key: str
    def __init__(self, serve: _Optional[str] = ..., canary: _Optional[str] = ..., canary_percent: _Optional[float] = ..., shadow: _Optional[str] = ..., shadow_percent: _Optional[float] = ..., canary_key: _Optional[str] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("version", "state", "reason", "digest", "deltas", "table_bytes", "stream")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ModelState
    reason: str
    digest: str
    deltas: _containers.RepeatedScalarFieldContainer[str]
    table_bytes: int
    stream: DeltaStream
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., reason: _Optional[str] = ..., digest: _Optional[str] = ..., deltas: _Optional[_Iterable[str]] = ..., table_bytes: _Optional[int] = ..., stream: _Optional[_Union[DeltaStream, _Mapping]] = ...) -> None: ...

class DeltaStream(_message.Message):
    __slots__ = ("state", "reason", "num_pending", "last", "last_created_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LAST_CREATED_S_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    num_pending: int
    last: str
    last_created_s: float
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., num_pending: _Optional[int] = ..., last: _Optional[str] = ..., last_created_s: _Optional[float] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetRoutingRequest(_message.Message):
    __slots__ = ("model", "routing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    model: str
    routing: Routing
    def __init__(self, model: _Optional[str] = ..., routing: _Optional[_Union[Routing, _Mapping]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ApplyDeltaRequest(_message.Message):
    __slots__ = ("model", "version", "delta")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    delta: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., delta: _Optional[str] = ...) -> None: ...
