"""Checkpoints of a training run on several ranks: written by all, loaded under any plan and world size.

A run's checkpoints are in one directory:

    run/latest               the name of the newest whole checkpoint, replaced in one step
    run/best                 the name of that of the best epoch
    run/step-00000100/       .metadata, *.distcp: torch.distributed.checkpoint; training.json: all other state

``save_training`` and ``load_training`` are collective: every rank of the default process group must call
them, in the same order relative to other collectives.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from recsys.base.files import disk_full_error, naming_full_disk, open_for_torch
from recsys.checkpoint.dcp_metadata import CheckpointReader
from recsys.checkpoint.ranks import (
    from_first,
    gathered,
    group_of,
    rng_states,
    set_rng_states,
)
from recsys.checkpoint.run import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    TrainingRecord,
    new_directory,
    newest,
    publish,
    read_record,
)
from recsys.checkpoint.state import OptimizerViews, View, model_views, optimizer_views
from recsys.errors import CheckpointError, CheckpointWriteError
from recsys.optim.state import recut_row_state
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.table_shards import sharded_tensor

T = TypeVar("T")


class StateDict(Protocol):
    """An object with a state dict, such as a combined KeyedOptimizer."""

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"state": {parameter: {name: tensor or number}}, "param_groups": [...]}``."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a result of ``state_dict``, of the same or another run."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The state of a run except its tensors, as JSON data.

    Attributes:
        step: Optimizer steps taken.
        factory: ``recsys.models.x:function`` that builds the model, for ``recsys-export``; None if there is
            none, and ``--factory`` must name one.
        arguments: The factory's arguments by name.
        shared: State that is the same on every rank (rank 0's is written): epoch, metrics, data set's name,
            settings.
        local: This rank's position in the data. None if the run has another world size, because the ranks'
            positions do not correspond; take the position from ``shared`` then.
    """

    step: int
    factory: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] | None = None


def save_training(
    run: str | os.PathLike[str],
    model: nn.Module,
    optimizer: StateDict | None,
    state: TrainingState,
    *,
    keep: int = 2,
    is_best: bool = False,
) -> Path:
    """Write one checkpoint of a run. It becomes visible only when it is complete.

    If the process is killed at any time, the last complete checkpoint remains. The states of the random
    number generators (torch's and Python's on the CPU; torch's of the rank's CUDA device) are saved per rank.

    Args:
        run: The run's directory, on a file system shared by all ranks.
        model: A DistributedModelParallel (or, on one rank, any module).
        optimizer: All optimizers combined; None saves none.
        state: The state of the run.
        keep: Number of complete checkpoints to keep besides the best; older ones are removed.
        is_best: Whether this one becomes the best, which exports take.

    Returns:
        The checkpoint's directory.

    Raises:
        CheckpointError: The state is not plain data; raised on every rank.
        CheckpointWriteError: A rank could not write, as on a full disk; raised on every rank. Nothing of the checkpoint
            is left.
    """
    run = Path(run)
    group = group_of(model)
    mine, error = _tried(lambda: _prepared(model, optimizer, state))
    ranks = gathered(None if mine is None else mine.rank, error, group)
    assert mine is not None
    record = mine.record(ranks)
    what = f"checkpoint of step {state.step}"

    def on_first(make: Callable[[], Path]) -> Path:
        def named() -> str:
            with naming_full_disk(what):
                return str(make())

        return Path(from_first(named, group, CheckpointWriteError))

    partial = on_first(lambda: new_directory(run, record))
    try:
        _write_tensors(partial, mine.tensors, group, what)
        return on_first(lambda: publish(run, partial, record, keep, is_best=is_best))
    except CheckpointWriteError:
        # On all ranks: each has written by now, and whichever comes first removes it.
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load_training(
    run: str | os.PathLike[str], model: nn.Module, optimizer: StateDict | None
) -> TrainingState | None:
    """Load the newest complete checkpoint of a run into a model and its optimizers, under any plan.

    Random number generators are restored only if the world size is that of the saved run.

    Args:
        run: The run's directory, or one checkpoint in it.
        model: A model of the same tables, under any plan and world size.
        optimizer: The optimizers, as saved; their state is converted to this run's plan.

    Returns:
        The state of the run; None if the directory holds no complete checkpoint (a new run).

    Raises:
        CheckpointError: The checkpoint does not fit or is damaged; raised on every rank.
    """
    group = group_of(model)
    found = from_first(lambda: str(newest(run) or ""), group)
    if not found:
        return None
    load = _Load(Path(found), model, optimizer, group)
    names = gathered(*_tried(load.prepare), group)
    load.check(names)
    gathered(*_tried(load.fill), group)
    return load.state()


@dataclass(frozen=True, kw_only=True)
class _Mine:
    """This rank's part of a checkpoint: tensors for DCP, plain data for rank 0."""

    state: TrainingState
    tensors: dict[str, Tensor]
    rank: dict[str, Any]
    plan: dict[str, Any]
    values: dict[str, Any]
    param_groups: Any

    def record(self, ranks: list[Any]) -> TrainingRecord:
        """Merge the ranks' records; a counter is taken from a rank that has counted."""
        counters: dict[str, float] = {}
        widths: dict[str, list[int]] = {}
        for rank in ranks:
            for name, count in rank["counters"].items():
                counters[name] = max(count, counters.get(name, 0))
            widths |= rank["widths"]
        return TrainingRecord(
            step=self.state.step,
            factory=self.state.factory,
            arguments=self.state.arguments,
            shared=self.state.shared,
            ranks=tuple({"local": rank["local"], "rng": rank["rng"]} for rank in ranks),
            plan=self.plan,
            optimizer={
                "counters": counters,
                "values": self.values,
                "column_widths": widths,
                "param_groups": self.param_groups,
            },
        )


def _prepared(model: nn.Module, optimizer: StateDict | None, state: TrainingState) -> _Mine:
    env = getattr(model, "env", None)
    views = {f"{MODEL_PREFIX}{name}": view for name, view in model_views(model.state_dict()).items()}
    saved: dict[str, Any] = {"state": {}} if optimizer is None else optimizer.state_dict()
    found = optimizer_views(model, saved["state"])
    views |= {f"{OPTIMIZER_PREFIX}{name}": view for name, view in found.tensors.items()}
    plan = getattr(model, "plan", None)
    mine = _Mine(
        state=state,
        tensors={name: _to_save(view, env) for name, view in views.items()},
        rank={
            "local": None if state.local is None else dict(state.local),
            "rng": rng_states(),
            "counters": {name: tensors[0].item() for name, tensors in found.counters.items()},
            "widths": {name: list(view.widths) for name, view in found.tensors.items() if view.widths},
        },
        plan={} if plan is None else plan.to_json(),
        values={name: holder[key] for name, (holder, key) in found.values.items()},
        param_groups=_groups(saved, list),
    )
    mine.record([mine.rank]).dumps()  # raises now, on the rank with wrong data
    return mine


def _to_save(view: View, env: ShardingEnv | None) -> Tensor:
    if view.shards is None:
        return view.local[0][1]
    assert env is not None
    if view.local:
        env = env.with_group(
            view.local[0][1].device
        )  # mappings are in host memory, whatever the tables' device is
    # Ranks without rows of a table have empty shards, which DCP treats as an error.
    shards = {where: rank for where, rank in view.shards.items() if 0 not in where[1]}
    local = {where: tensor for where, tensor in view.local if 0 not in where[1]}
    return sharded_tensor(view.shape, view.dtype, shards, local, env)


class _FileSystem(FileSystem):
    """Files whose writes do not raise within torch, which would end the process."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """Open a file to write; an error is raised after the block."""
        assert mode == "wb"
        with open_for_torch(Path(path)) as file:
            yield file


def _write_tensors(
    partial: Path, tensors: dict[str, Tensor], group: dist.ProcessGroup | None, what: str
) -> None:
    writer = FileSystemWriter(partial, sync_files=True)
    writer.fs = _FileSystem()
    try:
        if group is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # DCP warns about a single process
                save(tensors, storage_writer=writer, no_dist=True)
        else:
            save(tensors, storage_writer=writer, process_group=group)
    except (CheckpointException, OSError) as error:
        # The reason of the first of the ranks that failed, without its stack.
        failed = {} if isinstance(error, OSError) else error.failures
        rank, cause = min(
            ((rank, cause) for rank, (cause, _) in failed.items()), key=lambda at: at[0], default=(0, error)
        )
        full = disk_full_error(what, cause) if isinstance(cause, OSError) else None
        by_rank = f"rank {rank}: " if group is not None and group.size() > 1 else ""
        reason = full or f"{what} cannot be written: {type(cause).__name__}: {cause}"
        raise CheckpointWriteError(f"{by_rank}{reason}") from None


class _Load:
    """The loading of a checkpoint, in steps between which the ranks agree."""

    def __init__(
        self,
        directory: Path,
        model: nn.Module,
        optimizer: StateDict | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._directory, self._model, self._optimizer = directory, model, optimizer
        self._rank, self._world_size = (0, 1) if group is None else (dist.get_rank(group), group.size())
        self._saved: dict[str, Any] = {"state": {}}

    def prepare(self) -> list[str]:
        """Find the stored tensors and their targets; return the names of the optimizer's tensors."""
        self._record = read_record(self._directory)
        self._reader = CheckpointReader(self._directory)
        if self._optimizer is not None:
            getattr(self._optimizer, "init_state", lambda: None)()
            self._saved = self._optimizer.state_dict()
        self._model_state = self._model.state_dict()
        self._weights = _prefixed(MODEL_PREFIX, model_views(self._model_state))
        self._found = optimizer_views(self._model, self._saved["state"])
        self._states = _prefixed(OPTIMIZER_PREFIX, self._found.tensors)
        return sorted(self._states)

    def check(self, names_by_rank: list[list[str]]) -> None:
        """Check that the checkpoint and this run have the same tensors; raise the same error on every rank."""
        held = list(self._reader.tensors)
        _check_names("model", self._weights, [name for name in held if name.startswith(MODEL_PREFIX)])
        if self._optimizer is None:
            return
        # For tables with plain gradients, each rank knows only the states of its own shards.
        states = {name for names in names_by_rank for name in names}
        _check_names("optimizer", states, [name for name in held if name.startswith(OPTIMIZER_PREFIX)])

    def fill(self) -> None:
        """Copy all tensors, then restore the random number generators."""
        if self._optimizer is not None:
            _fill(self._states, self._reader, self._record.optimizer["column_widths"])
            _fill_plain(self._found, self._saved, self._record)
            self._optimizer.load_state_dict(self._saved)
        _fill(self._weights, self._reader, {})
        # The tensors are the model's own; load_state_dict runs the hooks of its modules.
        self._model.load_state_dict(self._model_state)
        if self._has_this_world_size():
            set_rng_states(self._record.ranks[self._rank].get("rng"))

    def _has_this_world_size(self) -> bool:
        return len(self._record.ranks) == self._world_size

    def state(self) -> TrainingState:
        """Return the state of the run."""
        record = self._record
        return TrainingState(
            step=record.step,
            factory=record.factory,
            arguments=record.arguments,
            shared=record.shared,
            local=record.ranks[self._rank].get("local") if self._has_this_world_size() else None,
        )


def _prefixed(prefix: str, views: Mapping[str, View]) -> dict[str, View]:
    return {f"{prefix}{name}": view for name, view in views.items()}


def _tried(step: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return a step's result or its error; all ranks must know of an error before they continue."""
    try:
        return step(), None
    except (OSError, ValueError) as wrong:
        return None, str(wrong)
    except Exception as wrong:  # any exception: otherwise the other ranks would wait for this one
        return None, f"{type(wrong).__name__}: {wrong}"


@torch.no_grad()
def _fill(views: Mapping[str, View], reader: CheckpointReader, widths: Mapping[str, Any]) -> None:
    for name, view in views.items():
        stored = reader.tensors[name]
        old = widths.get(name.removeprefix(OPTIMIZER_PREFIX)) if view.widths else None
        if view.widths and old is not None and tuple(old) != view.widths:
            _fill_recut(name, view, reader, old)
            continue
        if stored.shape != view.shape or stored.dtype != view.dtype:
            raise CheckpointError(
                f"{name!r}: the checkpoint holds {stored.dtype} {list(stored.shape)}, expected {view.dtype} "
                f"{list(view.shape)}"
            )
        for (offsets, sizes), tensor in view.local:
            tensor.copy_(reader.read(name, offsets, sizes))


def _fill_recut(name: str, view: View, reader: CheckpointReader, old: list[int]) -> None:
    """Load a state of one number per row and column block from a run with other blocks."""
    assert view.widths is not None
    stored = reader.tensors[name]
    more = () if len(old) == 1 else (len(old),)
    if stored.shape != (view.shape[0], *more):
        raise CheckpointError(
            f"{name!r}: the checkpoint holds {list(stored.shape)}, expected {[view.shape[0], *more]}"
        )
    for (offsets, sizes), tensor in view.local:
        rows = reader.read(name, (offsets[0], *(0 for _ in more)), (sizes[0], *more))
        state = recut_row_state(rows, old, view.widths)
        tensor.copy_(state if len(view.widths) == 1 else state[:, offsets[1] : offsets[1] + sizes[1]])


def _fill_plain(found: OptimizerViews, saved: dict[str, Any], record: TrainingRecord) -> None:
    """Load step counts, values other than tensors, and parameter groups if the optimizer keeps them."""
    counters, values = record.optimizer["counters"], record.optimizer["values"]
    missing = sorted(set(found.values) - set(values))
    if missing:
        raise CheckpointError(f"optimizer: the checkpoint lacks {missing[:5]} ({len(missing)})")
    for name, tensors in found.counters.items():
        for tensor in tensors:
            # Some optimizers with the same state do not count steps: the run's steps are used.
            tensor.fill_(counters.get(name, record.step))
    for name, (holder, key) in found.values.items():
        holder[key] = values[name]
    if saved.get("param_groups") is not None:
        if record.optimizer["param_groups"] is None:
            raise CheckpointError("optimizer: the checkpoint lacks param_groups; it was saved without them")
        saved["param_groups"] = _groups(record.optimizer, tuple)


def _groups(state: Mapping[str, Any], pair: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """Return parameter groups with pairs of numbers (Adam's betas) as lists, for JSON, or as tuples, for torch."""
    if state.get("param_groups") is None:
        return None
    return [
        {k: pair(v) if isinstance(v, list | tuple) and k != "params" else v for k, v in group.items()}
        for group in state["param_groups"]
    ]


def _check_names(what: str, expected: Collection[str], got: list[str]) -> None:
    missing, unknown = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    if missing or unknown:
        raise CheckpointError(
            f"{what}: the checkpoint lacks {missing[:5]} ({len(missing)}), and holds {unknown[:5]} ({len(unknown)}), "
            "which are unknown here; expected the one that was saved"
        )
