"""One inference of Open Inference, as gRPC and HTTP have it in common: parameters, tensors, wanted outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from serve.batching import Priority
from serve.errors import RequestError
from serve.gateway import checked_request_id
from serve.hosted import HostedModel
from serve.kserve_tensors import Tensor, raw_request
from serve.raw import RawRequest
from serve.texts import listed, short
from serve.work import Rows

# Triton's: 0 stands for the model's default, 1 is served first.
_PRIORITIES = {0: Priority.NORMAL, **{int(priority): priority for priority in Priority}}
_US_PER_S = 1e6
_MAX_TIMEOUT_US = 2**63 - 1
# Values, lengths and weights of a sparse input.
_MOST_PARTS = 3


@dataclass(frozen=True, slots=True)
class Parameters:
    """What is read of a request's parameters; any other is ignored, as the protocol allows.

    Attributes:
        priority: of its waiting.
        timeout_s: how long the client waits; None where it did not say.
        context: names of the inputs that have one row, which stands for all.
    """

    priority: Priority = Priority.NORMAL
    timeout_s: float | None = None
    context: frozenset[str] = frozenset()

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Parameters:
        """Read them from plain values.

        Raises:
            RequestError: one is not of its type or range, or asks for what is not served.
        """
        if not given:
            return _NO_PARAMETERS
        if given.get("sequence_id", 0) not in (0, ""):
            raise RequestError(
                "parameters['sequence_id']: got a sequence, expected none: no model here keeps state between requests"
            )
        return cls(
            priority=_priority(given.get("priority", 0)),
            timeout_s=_timeout_s(given.get("timeout", 0)),
            context=_context(given.get("context", "")),
        )

    def remaining_s(self, of_call_s: float | None) -> float | None:
        """Until the deadline: the earlier of the call's own and the parameter's; None for none."""
        if of_call_s is None or self.timeout_s is None:
            return self.timeout_s if of_call_s is None else of_call_s
        return min(of_call_s, self.timeout_s)


# The names of those that are read.
PARAMETERS = ("priority", "timeout", "context", "sequence_id")
_NO_PARAMETERS = Parameters()


@dataclass(slots=True, kw_only=True)
class InferRequest:
    """A request whose tensors have names and shapes, and nothing of them checked.

    Attributes:
        model: its name; empty for the only model.
        version: empty for the version that the routing chooses.
        request_id: the client's own name for it.
        parameters: of the request.
        num_inputs: how many tensors it has.
        inputs: makes them; called only where a model can have so many.
        num_outputs: how many outputs it names; 0 for all.
        outputs: makes their names, in the order in which they are to be sent.

    Raises:
        RequestError: the ID is too long.
    """

    model: str
    version: str
    request_id: str
    parameters: Parameters
    num_inputs: int
    inputs: Callable[[], Sequence[Tensor]]
    num_outputs: int = 0
    outputs: Callable[[], Sequence[str]] = list

    def __post_init__(self) -> None:
        checked_request_id(self.request_id, "id")

    def read(self, hosted: HostedModel) -> RawRequest:
        """The inputs, for one model.

        Raises:
            RequestError: a tensor or a wanted output is not one that the model has.
        """
        signature = hosted.signature
        self._check_outputs([output.name for output in signature.outputs])
        most = len(signature.dense) + _MOST_PARTS * len(signature.sparse)
        if self.num_inputs > most:
            raise RequestError(
                f"inputs: got {self.num_inputs} tensors, expected at most {most} for this model"
            )
        return raw_request(signature, self.inputs(), self.parameters.context, hosted.settings.limits)

    def _check_outputs(self, names: Sequence[str]) -> None:
        if not self.num_outputs:
            return
        if self.num_outputs > len(names):
            raise RequestError(f"outputs: got {self.num_outputs}, expected at most {len(names)}, each once")
        wanted = self.outputs()
        unknown = next((name for name in wanted if name not in names), None)
        if unknown is not None:
            raise RequestError(f"outputs: got an unknown output {unknown[:64]!r}, expected {listed(names)}")
        if len(set(wanted)) != len(wanted):
            raise RequestError("outputs: got an output more than once, expected each at most once")


class WantedOutput(NamedTuple):
    """One output of an answer: its values are little-endian float32, row-major, of this shape."""

    name: str
    shape: tuple[int, ...]
    values: bytes


def wanted_outputs(request: InferRequest, rows: Rows) -> list[WantedOutput]:
    """The outputs that a request asked for, in its order."""
    every = {
        output.name: WantedOutput(output.name, (rows.num_rows, *output.shape), values)
        for output, values in zip(rows.signature.outputs, rows.values, strict=True)
    }
    return [every[name] for name in request.outputs()] if request.num_outputs else list(every.values())


def _priority(value: Any) -> Priority:
    if isinstance(value, int) and not isinstance(value, bool) and value in _PRIORITIES:
        return _PRIORITIES[value]
    raise RequestError(
        f"parameters['priority']: got {short(value)}, expected 0 (default) to {max(_PRIORITIES)} (served last)"
    )


def _timeout_s(value: Any) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TIMEOUT_US:
        return value / _US_PER_S if value else None
    raise RequestError(
        f"parameters['timeout']: got {short(value)}, expected a whole number of microseconds (0 for none)"
    )


def _context(value: Any) -> frozenset[str]:
    if not isinstance(value, str):
        raise RequestError(
            f"parameters['context']: got {short(value)}, expected names of inputs, with commas between them"
        )
    return frozenset(name.strip() for name in value.split(",") if name.strip())
