"""One rank of a training run, in a process that ``test_checkpoint_kill`` kills and starts again."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.checkpoint import filesystem

from recsys.checkpoint import distributed, run
from recsys.checkpoint.distributed import TrainingState, load_training, save_training
from tests.support.models.checkpoint_model import ARGUMENTS, FACTORY, Setup, make, numbers, train

SAVE_EVERY = 2
#: The save (by its step) and the step that are stopped.
STOP_AT = 4


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a rank does.

    Attributes:
        rank: its number.
        world_size: W.
        folder: where ranks meet, and where each writes what it comes to.
        run: the checkpoints.
        num_steps: of the whole run.
        stop: where it stops, says so and waits to be killed: ``step``, ``files``, ``publish``, ``latest``, or ``-``.
    """

    rank: int
    world_size: int
    folder: Path
    run: Path
    num_steps: int
    stop: str


def _stop(pipe: Connection) -> None:
    pipe.send("stopped")
    pipe.recv()  # nobody writes: this ends with the process


def _before(owner: Any, name: str, when: Any, pipe: Connection) -> None:
    """Let a function of ours or of torch's do what it does, but stop before one of its calls."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when():
            _stop(pipe)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def main(part: Part, pipe: Connection) -> None:
    """Resume the run, or start it, and write what it comes to."""
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rank, world_size = part.rank, part.world_size
    store = dist.FileStore(str(part.folder / "store"), world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120)
    )
    model, optimizer = make(Setup(plan="mixed"))
    torch.manual_seed(5 + rank)
    found = load_training(part.run, model, optimizer)
    first = 0 if found is None else found.step
    pipe.send(first)
    step, items = first, 0

    def third_item() -> bool:
        nonlocal items
        items += step == STOP_AT
        return items == 3

    places: dict[str, tuple[Any, str, Any]] = {
        "files": (filesystem, "_write_item", third_item),
        "publish": (distributed, "publish", lambda: step == STOP_AT),
        "latest": (run, "_point", lambda: step == STOP_AT),
    }
    if part.stop in places:
        _before(*places[part.stop], pipe)
    while step < part.num_steps:
        if part.stop == "step" and step == STOP_AT + 1:
            _stop(pipe)
        train(model, optimizer, step, rank)
        step += 1
        if step % SAVE_EVERY == 0:
            state = TrainingState(step=step, factory=FACTORY, arguments=ARGUMENTS, local={"rank": rank})
            save_training(part.run, model, optimizer, state)
    torch.save(numbers(model, optimizer), part.folder / f"numbers{rank}.pt")
    dist.destroy_process_group()
