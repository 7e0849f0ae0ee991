"""Loading an artifact as servers do, and measuring it: sizes in turns, limits in the same run."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.base.allocator import tune_malloc
from recsys.base.machine import package_versions
from recsys.errors import TargetError
from recsys.inputs.signature import IdPolicy
from recsys.kernels import operators as own
from recsys.kernels.operators import StepTime
from recsys.rows.memory import RowsMemory
from serve.bench.environment import machine, now
from serve.profiler.batches import Drawn, Shape, draw, grouped, num_batches
from serve.profiler.hints import hints
from serve.profiler.limits import ROWS_OF_CALL, Limits, gather_ways, measure_limits, random_reads
from serve.profiler.operators import (
    OperatorTime,
    Recorded,
    Recording,
    Took,
    operator_times,
    record,
    undisturbed,
)
from serve.profiler.result import BETWEEN, CALL, Measured, Profile, SizeProfile, size_profile
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds
from serve.profiler.work import INPUTS, REGION, Work

_PACKAGES = ("recsys-serving", "torch", "fbgemm-gpu-cpu", "fbgemm-gpu")
# Profiled calls of a round; fewer of large batches.
_PROFILED_ROWS, _MIN_PROFILED, _MAX_PROFILED = 4096, 12, 100
_FORWARD, _PYTHON = "forward", "call"
# A share of the time for all measurements.
_SHARE_OF_SIZES = 0.75

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to profile.

    Attributes:
        artifact: The artifact.
        mix: The share of batches of each size; the sum is 1. Sizes with a share of 0 are measured too.
        target: The artifact's target; None for the first that fits this machine.
        shape: How batches are drawn.
        scripted: Whether to run TorchScript, also where the artifact's program could run.
        copy_rows: Whether to copy the rows into memory, as ``recsys-serve --copy-rows``.
        rounds: How long to measure; on the processor's clock.
        seconds: Time for all measurements; each has one round at least.
        seed: Of the random batches.
    """

    artifact: Path
    mix: Mapping[int, float]
    target: str | None = None
    shape: Shape = field(default_factory=Shape)
    scripted: bool = False
    copy_rows: bool = False
    rounds: RoundsConfig = field(default_factory=lambda: RoundsConfig(num_rounds=7, turn_s=0.05, clock="cpu"))
    seconds: float = math.inf
    seed: int = 0


def run(options: Options, progress: Progress = lambda _: None) -> Profile:
    """Profile an artifact.

    Args:
        options: What to profile.
        progress: Called with what is measured next.

    Raises:
        ArtifactError: The artifact cannot be used.
        TargetError: The target is not in host memory, or the model has no ranking form.
    """
    tune_malloc()
    artifact = _load(options)
    with _one_thread():
        profile = measure(artifact, options, progress)
    return replace(profile, hints=hints(profile, artifact))


def measure(
    artifact: LoadedArtifact,
    options: Options,
    progress: Progress = lambda _: None,
    limits: Limits | None = None,
) -> Profile:
    """Profile a loaded artifact, without hints. One intra-op thread should be set.

    Args:
        artifact: The artifact.
        options: What to profile.
        progress: Called with what is measured next.
        limits: Of the machine, if they are known.
    """
    generator = np.random.default_rng(options.seed)
    end_s = time.monotonic() + options.seconds
    if limits is None:
        progress("the limits of this machine")
        limits = _limits(artifact, _until(options, end_s - _SHARE_OF_SIZES * options.seconds), generator)
    sizes, num_rounds = [], []
    for i, batch_size in enumerate(sorted(options.mix)):
        num_left = len(options.mix) - i
        progress(f"batches of {batch_size}, {num_left} of {len(options.mix)} sizes left")
        batches = draw(artifact.manifest, batch_size, options.shape, generator, num_batches(batch_size))
        now_s = time.monotonic()
        timed = _until(options, now_s + (end_s - now_s) / num_left)
        size, rounds = _measure_size(artifact, timed, batch_size, batches, limits)
        sizes.append(size)
        num_rounds.append(rounds)
    return Profile(
        artifact=options.artifact.resolve().name,
        about=_about(artifact, sizes[0]),
        settings=_settings(options),
        machine={**machine(), "versions": package_versions(_PACKAGES), "started_at": now()},
        limits=limits,
        mix=dict(options.mix),
        sizes=tuple(sizes),
        notes=(*_notes(artifact, limits, options), *_short_notes(options, num_rounds)),
    )


def _until(options: Options, until_s: float) -> Options:
    """Return the options with an end of their rounds, if the time is bounded."""
    if math.isinf(options.seconds):
        return options
    return replace(options, rounds=replace(options.rounds, until_s=until_s))


def _short_notes(options: Options, num_rounds: Sequence[int]) -> tuple[str, ...]:
    """Return a note if the time was up before all rounds had run."""
    if min(num_rounds, default=options.rounds.num_rounds) >= options.rounds.num_rounds:
        return ()
    return (
        f"the {options.seconds:.0f} s were up after {min(num_rounds)} of {options.rounds.num_rounds} rounds for some "
        "batch sizes: --seconds gives more time, fewer --batch-sizes need less",
    )


def _load(options: Options) -> LoadedArtifact:
    load = functools.partial(
        load_artifact,
        options.artifact,
        target=options.target,
        verify_checksums=False,
        memory=RowsMemory(copy_rows=options.copy_rows),
    )
    artifact = load(scripted=options.scripted)
    if any(device != "cpu" for device in artifact.target.devices):
        raise TargetError(
            f"target: got {artifact.target_name!r}, expected one in host memory: --target cpu, if the artifact has it"
        )
    if _program(artifact) is None and artifact.target.skeleton is None:
        raise TargetError(
            f"target: got {artifact.target_name!r} without TorchScript, which profiles are made of; run recsys-export "
            "--format both"
        )
    if options.shape.ranking and len(artifact.graphs.calls) == 1:
        raise TargetError("--ranking: got a model without a ranking form; recsys-export --context makes one")
    return artifact


def _program(artifact: LoadedArtifact) -> ProgramGraphs | None:
    """Return the programs of an artifact; None if it runs TorchScript or ExportedPrograms."""
    graphs = artifact.graphs
    return graphs if isinstance(graphs, ProgramGraphs) and graphs.steps else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set one intra-op thread, as servers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _blob(artifact: LoadedArtifact) -> Tensor | None:
    return artifact.rows.ranks[0].rows if artifact.manifest.layout.blocks else None


def _limits(artifact: LoadedArtifact, options: Options, generator: np.random.Generator) -> Limits:
    weights = sum(tensor.nbytes for tensor in artifact.graphs.tensors()[0].values())
    linear_dtype = artifact.target.linear_dtype
    if _program(artifact) is not None:
        linear_dtype = own.multiplies_in(linear_dtype)
    item_bytes = {"float32": 4, "bfloat16": 2, "int8": 1}[linear_dtype]
    reads = random_reads(artifact.manifest.layout, generator)
    return measure_limits(_blob(artifact), reads, weights * item_bytes // 4, options.rounds)


def _measure_size(
    artifact: LoadedArtifact, options: Options, batch_size: int, batches: Sequence[Drawn], limits: Limits
) -> tuple[SizeProfile, int]:
    """Measure calls, the operators within, and reads of the same rows in turns; return the number of rounds too."""
    is_ranking = options.shape.ranking
    inputs = [batch.inputs for batch in batches]
    reads = [batch.reads for batch in batches]
    blob = _blob(artifact)
    ways = gather_ways(blob, grouped(reads, ROWS_OF_CALL)) if blob is not None else {}
    contestants = {
        _FORWARD: Contestant(artifact.forward_ranking if is_ranking else artifact.forward, inputs),
        _PYTHON: Contestant(_nothing(len(inputs[0]), artifact), inputs),
        **ways,
    }
    num_profiled = min(max(_PROFILED_ROWS // batch_size, _MIN_PROFILED), _MAX_PROFILED, len(inputs))
    seconds: dict[str, list[float]] = defaultdict(list)
    recorder = _recorder(artifact, 1 if is_ranking else 0)
    recordings: list[Recording] = []
    for number in range(options.rounds.num_rounds):
        if number and time.monotonic() > options.rounds.until_s:
            break
        with torch.inference_mode():
            timings = run_rounds(contestants, replace(options.rounds, num_rounds=1))
        for name, timing in timings.items():
            seconds[name] += timing.seconds
        start = number * num_profiled % len(inputs)
        recordings.append(recorder((inputs[start:] + inputs[:start])[:num_profiled]))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    num_rows = statistics.mean(each.num_rows for each in reads)
    rate = None
    if ways and num_rows:
        rows_of_call = sum(each.num_rows for each in reads) / len(grouped(reads, ROWS_OF_CALL))
        rate = rows_of_call / min(medians[name] for name in ways)
    call_us = 1e6 * medians[_FORWARD]
    times = _joined_times(recordings, call_us)
    measured = Measured(call_us=call_us, python_us=1e6 * medians[_PYTHON], operators=times)
    profile = size_profile(
        batch_size,
        measured,
        (num_rows, statistics.mean(each.num_bytes for each in reads), rate),
        limits,
    )
    return profile, len(recordings)


def _recorder(artifact: LoadedArtifact, form: int) -> Callable[[Sequence[tuple[Tensor, ...]]], Recording]:
    """Return what records calls of a form: of a program by its steps, else by torch's profiler."""
    program = _program(artifact)
    if program is not None:
        return functools.partial(_record_steps, program, form)
    return functools.partial(record, artifact.scripted().frozen[form])


def _joined_times(recordings: Sequence[Recording], call_us: float) -> list[OperatorTime]:
    """Return the operators of all rounds."""
    together = Recording(
        forwards=[calls for each in recordings for calls in each.forwards],
        call_us=statistics.median(each.call_us for each in recordings),
    )
    return operator_times(together.forwards, together.overhead_us(call_us))


def _nothing(num_inputs: int, artifact: LoadedArtifact) -> Callable[..., Any]:
    """Return a call of a graph that does nothing, otherwise like the artifact's."""
    names = ", ".join(f"x{i}" for i in range(num_inputs))
    source = f"def f({names}) -> Dict[str, Tensor]:\n    return {{'score': x0}}\n"
    call = torch.jit.CompilationUnit(source).f
    file = artifact.rows.file

    def forward(*inputs: Tensor) -> Any:
        if file is not None:
            file.check()
        return call(*inputs)

    return forward


def _about(artifact: LoadedArtifact, size: SizeProfile) -> dict[str, Any]:
    is_program = _program(artifact) is not None
    steps: dict[str, int] = defaultdict(int)
    for row in size.operators:
        if row.name not in (BETWEEN, CALL, INPUTS):
            steps[row.name] += round(row.calls)
    layout = artifact.manifest.layout
    return {
        "digest": artifact.digest,
        "target": artifact.target_name,
        "linear_dtype": artifact.target.linear_dtype,
        "dense_dtype": artifact.target.dense_dtype,
        "num_tables": len(artifact.manifest.tables),
        "table_bytes": layout.num_bytes if layout.blocks else 0,
        "row_bytes": sorted({block.row_bytes for block in layout.blocks}),
        "rows": "copied into memory" if artifact.rows.file is None else "mapped from the file",
        "instructions": own.instructions() if is_program else None,
        "program": dict(steps) if is_program else None,
    }


def _settings(options: Options) -> dict[str, Any]:
    shape = options.shape
    return {
        "ids_per_bag": _ids_per_bag(shape),
        "zipf": shape.zipf,
        "ranking": shape.ranking,
        "samples": shape.samples is not None,
        "scripted": options.scripted,
        "copy_rows": options.copy_rows,
        "num_rounds": options.rounds.num_rounds,
        "seconds": None if math.isinf(options.seconds) else options.seconds,
        "turn_s": options.rounds.turn_s,
        "seed": options.seed,
    }


def _ids_per_bag(shape: Shape) -> str:
    if shape.samples is not None:
        return "of the samples"
    if shape.examples is not None and not shape.has_bag_sizes:
        return "of the model's examples"
    return str(shape.ids_per_bag)


def _notes(artifact: LoadedArtifact, limits: Limits, options: Options) -> tuple[str, ...]:
    notes = []
    if not limits.is_native:
        notes.append(
            "rows and bytes were read by torch, which writes what it reads: these limits are lower than the machine's"
        )
    uses = [table for feature in artifact.signature.sparse for table in feature.tables]
    if any(table.id_policy is IdPolicy.MAPPED for table in uses) and not (
        options.shape.samples or (options.shape.examples and not options.shape.has_bag_sizes)
    ):
        notes.append(
            "raw IDs that own a row are not known: most read the last row of their table; --samples gives real ones"
        )
    return tuple(notes)


# Names of kinds that say too little by themselves.
_NAMES = {"inputs": INPUTS, "region": REGION, "gather": "gather rows"}


def _record_steps(graphs: ProgramGraphs, form: int, batches: Sequence[tuple[Tensor, ...]]) -> Recording:
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
