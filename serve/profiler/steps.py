"""The time of each step of a program, by the clock that its kernels carry.

Steps are timed as they run: those that fetch the rows of a later lookup take the time of that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from recsys.artifact.programs import ProgramGraphs
from recsys.kernels.operators import StepTime
from serve.profiler.operators import Recorded, Recording, Took, undisturbed
from serve.profiler.work import INPUTS, REGION, Work

# Names of kinds that say too little by themselves.
_NAMES = {"inputs": INPUTS, "region": REGION, "gather": "gather rows"}


def record_steps(graphs: ProgramGraphs, form: int, batches: Sequence[tuple[Tensor, ...]]) -> Recording:
    """Call a form with each batch on this thread, and measure its steps."""
    took, calls = [], []
    with torch.inference_mode():
        graphs.profile(form, batches[0])
        for batch in batches:
            passed_s, processor_s = time.perf_counter(), time.thread_time()
            steps = graphs.profile(form, batch)
            processor_s = time.thread_time() - processor_s
            took.append(Took(processor_s, time.perf_counter() - passed_s))
            calls.append([recorded(step) for step in steps])
    kept = undisturbed(took)
    return Recording(
        forwards=[calls[i] for i in kept], call_us=1e6 * statistics.median(took[i].processor_s for i in kept)
    )


def recorded(step: StepTime) -> Recorded:
    """Return a step as an operator."""
    is_layer = step.kind == "linear"
    label = f"{step.in_width} → {step.out_width}" if is_layer else step.of.replace("_", " ")
    work = Work(
        num_rows=step.num_ids,
        flops=step.flops,
        dtype=step.dtype if step.flops else "",
        num_bytes=step.num_bytes,
    )
    name = _NAMES.get(step.kind, step.kind.replace("_", " "))
    return Recorded(name=name, label=label, space=step.space, work=work, us=step.us)
