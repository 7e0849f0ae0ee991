"""The time of each operator of a graph: of one in TorchScript by torch's profiler.

The profiler takes part of a microsecond for every operator. It takes it outside of what it records of the operator, so
that only operators that call others look slower than they are, and that is taken off.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from serve.profiler.work import Call, Work, label_of, work_of

# Kineto reports its start and end on standard error unless this is above 5; it is read once.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

# The name under which TorchScript's interpreter records a call of a module.
_FORWARD = "forward"
# The first calls under a profiler are slower.
_NUM_UNUSED_CALLS = 3
_CHAIN = """
def chain(x):
    for _ in range(64):
        x = torch.neg(x)
    return x
"""
_NUM_CHAIN_CALLS, _NUM_CHAIN_ROUNDS = 20, 9
# Operators with more arguments take longer to record.
_MOST_OVERHEAD = 4.0
# A share of the time of a call; longer waits are those of calls that lost their processor.
_MOST_WAITED = 0.03


@dataclass(frozen=True, kw_only=True)
class OperatorTime:
    """One operator with one label.

    Attributes:
        name: The operator.
        label: What tells its calls apart, such as ``415 → 512``; empty if nothing does.
        space: What it runs for: ``contexts`` or ``rows``; empty where that is not known.
        calls: Calls in a batch.
        us: The time of these calls in a batch, with that of the operators that they call.
        work: The least that they have to do in a batch.
    """

    name: str
    label: str
    space: str = ""
    calls: float
    us: float
    work: Work


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A call of an operator from the graph.

    Attributes:
        name: The operator.
        label: What tells its calls apart; empty if nothing does.
        space: What it runs for; empty where that is not known.
        work: The least that it has to do.
        us: Its raw time.
        num_inner: How many operators ran within.
    """

    name: str
    label: str = ""
    space: str = ""
    work: Work
    us: float
    num_inner: int = 0


@dataclass(frozen=True)
class Took:
    """The times of a call: on the processor, and in all."""

    processor_s: float
    passed_s: float

    @property
    def waited(self) -> float:
        """The share of the time that the call was not on a processor."""
        return 1.0 - self.processor_s / self.passed_s if self.passed_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Calls of a graph under the profiler.

    Attributes:
        forwards: The operators in their order, call by call.
        call_us: Processor time of a call, with the profiler's own.
    """

    forwards: list[list[Recorded]]
    call_us: float

    def overhead_us(self, plain_us: float) -> float:
        """Return the profiler's own time for an operator; 0 where it cannot matter, as none runs within another.

        The difference to calls without it, which caches and other processes change too, is trusted within bounds.

        Args:
            plain_us: Processor time of a call without the profiler.
        """
        if not any(each.num_inner for calls in self.forwards for each in calls):
            return 0.0
        num_events = statistics.mean(1 + sum(1 + each.num_inner for each in calls) for calls in self.forwards)
        usual = usual_overhead_us()
        return min(max((self.call_us - plain_us) / num_events, usual), _MOST_OVERHEAD * usual)


def record(module: torch.jit.ScriptModule, batches: Sequence[tuple[Tensor, ...]]) -> Recording:
    """Call a frozen graph with each batch under the profiler."""
    with torch.inference_mode():
        events, took = _profiled(module.forward, [*batches[:_NUM_UNUSED_CALLS], *batches])
    num_arguments = _num_arguments(module)
    forwards = [event for event in events if event.cpu_parent is None and event.name == _FORWARD]
    kept = undisturbed(took[-len(batches) :])
    return Recording(
        forwards=[list(_calls(forwards[i - len(batches)], num_arguments)) for i in kept],
        call_us=1e6 * statistics.median(took[i - len(batches)].processor_s for i in kept),
    )


def undisturbed(took: Sequence[Took]) -> list[int]:
    """Return which calls kept their processor: the profiler records the time that passes, others' included.

    Args:
        took: The times of all calls. At least a quarter of them is kept.
    """
    order = sorted(range(len(took)), key=lambda i: took[i].waited)
    least = -(-len(took) // 4)
    return sorted(i for n, i in enumerate(order) if n < least or took[i].waited <= _MOST_WAITED)


def operator_times(forwards: Sequence[Sequence[Recorded]], overhead_us: float) -> list[OperatorTime]:
    """Return the operators of several calls of a graph, the most expensive first.

    The median of each operator's calls is taken, so that the time of other processes does not count.

    Args:
        forwards: The recorded operators, in their order, for each call of the graph.
        overhead_us: The profiler's own time for an operator.
    """
    found: dict[tuple[str, str, str, int], list[Recorded]] = defaultdict(list)
    for calls in forwards:
        counts: dict[tuple[str, str, str], int] = defaultdict(int)
        for each in calls:
            key = (each.name, each.label, each.space)
            found[*key, counts[key]].append(each)
            counts[key] += 1
    by_name: dict[tuple[str, str, str], list[list[Recorded]]] = defaultdict(list)
    for (name, label, space, _), calls_of in found.items():
        by_name[name, label, space].append(calls_of)
    times = [
        OperatorTime(
            name=name,
            label=label,
            space=space,
            calls=sum(map(len, places)) / len(forwards),
            us=sum(len(calls_of) * _median_us(calls_of, overhead_us) for calls_of in places) / len(forwards),
            work=_mean_work(places, len(forwards)),
        )
        for (name, label, space), places in by_name.items()
    ]
    return sorted(times, key=lambda each: -each.us)


def _median_us(calls: Sequence[Recorded], overhead_us: float) -> float:
    return statistics.median(max(each.us - each.num_inner * overhead_us, 0.0) for each in calls)


def _mean_work(places: Sequence[Sequence[Recorded]], num_forwards: int) -> Work:
    works = [each.work for calls in places for each in calls]
    return Work(
        num_rows=sum(work.num_rows for work in works) / num_forwards,
        flops=sum(work.flops for work in works) / num_forwards,
        dtype=next((work.dtype for work in works if work.dtype), ""),
        num_bytes=sum(work.num_bytes for work in works) / num_forwards,
    )


@functools.cache
def usual_overhead_us() -> float:
    """Return the profiler's own time for a small operator: the median of several measurements."""
    chain = torch.jit.CompilationUnit(_CHAIN).chain
    inputs = [(torch.zeros(1),)] * _NUM_CHAIN_CALLS
    found = []
    for _ in range(_NUM_CHAIN_ROUNDS):
        began = time.thread_time()
        for each in inputs:
            chain(*each)
        plain_s = time.thread_time() - began
        events, profiled = _profiled(chain, inputs)
        found.append((sum(each.processor_s for each in profiled) - plain_s) / len(events))
    return max(1e6 * statistics.median(found), 0.0)


def _profiled(
    call: Callable[..., Any], batches: Sequence[tuple[Tensor, ...]]
) -> tuple[list[Any], list[Took]]:
    """Return the events of the calls, and the times of each under the profiler."""
    took = []
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        for batch in batches:
            passed_s, processor_s = time.perf_counter(), time.thread_time()
            call(*batch)
            processor_s = time.thread_time() - processor_s
            took.append(Took(processor_s, time.perf_counter() - passed_s))
    return list(recorded.events() or ()), took


def _calls(forward: Any, num_arguments: Mapping[str, int]) -> Iterator[Recorded]:
    for event in sorted(forward.cpu_children, key=lambda child: child.time_range.start):
        call = Call(
            name=event.name,
            shapes=event.input_shapes or (),
            dtypes=event.input_dtypes or (),
            values=event.concrete_inputs or (),
        ).last(num_arguments.get(event.name, len(event.input_shapes or ())))
        yield Recorded(
            name=call.name,
            label=label_of(call),
            work=work_of(call),
            us=event.time_range.elapsed_us(),
            num_inner=_num_inner(event),
        )


def _num_inner(event: Any) -> int:
    return sum(1 + _num_inner(child) for child in event.cpu_children)


def _num_arguments(module: torch.jit.ScriptModule) -> dict[str, int]:
    """Return how many arguments the graph gives to each operator."""
    found: dict[str, int] = {}

    def visit(block: Any) -> None:
        for node in block.nodes():
            found[node.kind()] = len(list(node.inputs()))
            for inner in node.blocks():
                visit(inner)

    visit(module.graph)
    return found
