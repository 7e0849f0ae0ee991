from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeedbackResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEEDBACK_RESULT_UNSPECIFIED: _ClassVar[FeedbackResult]
    FEEDBACK_RESULT_LATE: _ClassVar[FeedbackResult]
    FEEDBACK_RESULT_UNKNOWN: _ClassVar[FeedbackResult]
    FEEDBACK_RESULT_DOUBLED: _ClassVar[FeedbackResult]
    FEEDBACK_RESULT_INVALID: _ClassVar[FeedbackResult]
FEEDBACK_RESULT_UNSPECIFIED: FeedbackResult
FEEDBACK_RESULT_LATE: FeedbackResult
FEEDBACK_RESULT_UNKNOWN: FeedbackResult
FEEDBACK_RESULT_DOUBLED: FeedbackResult
FEEDBACK_RESULT_INVALID: FeedbackResult

class FeedbackRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[FeedbackItem]
    def __init__(self, items: _Optional[_Iterable[_Union[FeedbackItem, _Mapping]]] = ...) -> None: ...

class FeedbackItem(_message.Message):
    __slots__ = ("request_id", "model", "rows", "labels")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    rows: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., rows: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class FeedbackResponse(_message.Message):
    __slots__ = ("num_taken", "num_late", "num_unknown", "num_doubled", "num_invalid", "refused")
    NUM_TAKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_LATE_FIELD_NUMBER: _ClassVar[int]
    NUM_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    NUM_DOUBLED_FIELD_NUMBER: _ClassVar[int]
    NUM_INVALID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    num_taken: int
    num_late: int
    num_unknown: int
    num_doubled: int
    num_invalid: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, num_taken: _Optional[int] = ..., num_late: _Optional[int] = ..., num_unknown: _Optional[int] = ..., num_doubled: _Optional[int] = ..., num_invalid: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("item", "result", "message")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    item: int
    result: FeedbackResult
    message: str
    def __init__(self, item: _Optional[int] = ..., result: _Optional[_Union[FeedbackResult, str]] = ..., message: _Optional[str] = ...) -> None: ...
