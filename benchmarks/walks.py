"""Count the files and moves of three walks through the code: an export, a training step, a prediction.

A *walk* is everything that one call runs in our own packages. Its *moves* are the calls that go from one file to
another, each pair of caller and callee counted once, however often a loop repeats it. A file's *doors* are
the functions of it that other files call. Few files and few moves make a walk that can be read from top to bottom.

A move counts if whoever follows the steps must go there. These do not, and are in the raw numbers alone:

* Properties: they read as data, and say by their name what they hold.
* Methods that syntax calls, such as ``__getitem__`` and ``__enter__``: no step is called by such a name. What makes an
  object, ``__init__`` and ``__new__``, counts.
* What an event loop runs when its time has come, as no call of the function that runs the loop.
* What runs inside the model that an export takes, which is the subject of the walk and no part of it: that it is called
  counts, but not what it calls in the library of models.
* What a server does beside its requests.

    python -m benchmarks.walks [export] [step] [predict] [--doors] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.measure.command import Measured, make_parser, name_of, run
from benchmarks.measure.tables import table_of
from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    ShardingEnv,
)

_ROOT = Path(__file__).resolve().parent.parent
_SERVE = "serve-for-a-walk"
#: What calls all that an event loop runs.
_EVENT_LOOP = asyncio.Handle._run.__code__
_MODEL: dict[str, Any] = {
    "tables": [
        {"name": f"t{i}", "num_embeddings": 100, "embedding_dim": 8, "feature_names": [f"f{i}"]}
        for i in range(2)
    ],
    "dense_in_features": 4,
    "dense_arch_layer_sizes": [8, 8],
    "over_arch_layer_sizes": [8, 1],
}


#: What a server does beside its requests, such as watching files, and the threads that it does so in.
_BESIDE_REQUESTS = ("serve/app/server.py", "serve/threads.py")
#: What a model is made of.
_LIBRARY_OF_MODELS = ("recsys/models/", "recsys/modules/", "recsys/jagged/", "recsys/embedding.py")

Move = tuple[str, str, str, str]


@dataclass(kw_only=True)
class Walk:
    """The calls between files that a traced call made.

    Attributes:
        raw_files: The files that were entered.
        raw_moves: The pairs of calling function and called function that lie in different files.
        moves: Those that count.
        entries: How often each file was entered from another one, loops included.
    """

    raw_files: set[str] = field(default_factory=set)
    raw_moves: set[Move] = field(default_factory=set)
    moves: set[Move] = field(default_factory=set)
    entries: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        """The files that moves which count come from or go to."""
        return {file for source, _, target, _ in self.moves for file in (source, target)}

    def doors(self) -> dict[str, int]:
        """Return the number of functions of each file that other files call."""
        called = {(file, name) for _, _, file, name in self.moves}
        return dict(Counter(file for file, _ in called).most_common())

    def moves_within(self, folder: str) -> int:
        """Return the number of moves between files of one folder."""
        return sum(
            source.startswith(folder) and target.startswith(folder) for source, _, target, _ in self.moves
        )


class _Tracer:
    """Records a walk with ``sys.setprofile``.

    Args:
        packages: The folders of the functions that it follows.
        subject: The folders and files in which it does not follow what runs.
    """

    def __init__(self, packages: Sequence[str], subject: Sequence[str] = ()) -> None:
        self.walk = Walk()
        self.is_recording = True
        self._prefixes = tuple(f"{package}/" for package in packages)
        self._subject = tuple(subject)
        self._names: dict[CodeType, str | None] = {}
        self._are_steps: dict[CodeType, bool] = {}
        self._depth = threading.local()

    def _name_of(self, code: CodeType) -> str | None:
        """Return the file of a function of ours, relative to the checkout; None for others."""
        if code not in self._names:
            path = Path(code.co_filename)
            name = str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else ""
            self._names[code] = (
                name if name.startswith(self._prefixes) and code.co_name != "<module>" else None
            )
        return self._names[code]

    def _is_step(self, frame: FrameType) -> bool:
        """Whether a function that is called is no property, and has a name that steps call."""
        code = frame.f_code
        if code not in self._are_steps:
            name = code.co_name
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            found = inspect.getattr_static(type(first), name, None)
            is_syntax = name.startswith("__") and name.endswith("__") and name not in ("__init__", "__new__")
            self._are_steps[code] = not is_syntax and not isinstance(found, (property, cached_property))
        return self._are_steps[code]

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        callee = self._name_of(frame.f_code) if event in ("call", "return") else None
        if callee is None:
            return
        depth = getattr(self._depth, "of_subject", 0)
        if callee.startswith(self._subject):
            self._depth.of_subject = depth + (1 if event == "call" else -1)
        if event == "call" and self.is_recording:
            self._record(frame, callee, is_within=depth > 0)

    def _record(self, frame: FrameType, callee: str, *, is_within: bool) -> None:
        self.walk.raw_files.add(callee)
        caller, is_later = frame.f_back, False
        while caller is not None and self._name_of(caller.f_code) is None:
            is_later |= caller.f_code is _EVENT_LOOP
            caller = caller.f_back
        source = None if caller is None else self._name_of(caller.f_code)
        if caller is None or source is None or source == callee:
            return
        move = (source, caller.f_code.co_qualname, callee, frame.f_code.co_qualname)
        self.walk.raw_moves.add(move)
        self.walk.entries[callee] += 1
        if not is_within and not is_later and self._is_step(frame):
            self.walk.moves.add(move)

    def run(self, call: Callable[[], object]) -> Walk:
        """Call a function, and return its walk: on this thread, and on those that it starts."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self.walk


def _export(folder: Path) -> Walk:
    """Trace ``recsys-export`` from a checkpoint to the artifact."""
    from export import cli
    from recsys.checkpoint import Checkpoint, save_checkpoint
    from recsys.models.click import build_dlrm

    checkpoint = Checkpoint(
        factory="recsys.models.click:build_dlrm",
        arguments=_MODEL,
        state_dict=build_dlrm(**_MODEL).state_dict(),
    )
    save_checkpoint(folder / "model.pt", checkpoint)
    words = [str(folder / "model.pt"), "--json", "--force"]

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            if cli.main(words):
                raise RuntimeError("recsys-export failed")

    run()  # the first run imports modules
    return _Tracer(("recsys", "export"), _LIBRARY_OF_MODELS).run(run)


def _step(folder: Path) -> Walk:
    """Trace forward, backward and optimizer of one batch through a DistributedModelParallel of one rank."""
    tables = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=100, embedding_dim=8, feature_names=[f"f{i}"])
        for i in range(2)
    ]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        model = DistributedModelParallel(
            EmbeddingBagCollection(tables, device="meta"), ShardingEnv.from_process_group(group)
        )
        features = KeyedJaggedTensor.from_lengths_sync(
            ["f0", "f1"], torch.arange(6), lengths=torch.tensor([2, 1, 1, 2])
        )

        def run() -> None:
            model.fused_optimizer.zero_grad()
            model(features).values().sum().backward()
            model.fused_optimizer.step()

        run()
        return _Tracer(("recsys",)).run(run)
    finally:
        dist.destroy_process_group()


def _predict(folder: Path) -> Walk:
    """Trace one Predict in a server process, from the gRPC handler to the answer, in the reference engine."""
    from export.config import ExportConfig
    from export.pipeline import export_model
    from recsys.models.click import build_dlrm
    from serve.client import Client

    export_model(build_dlrm(**_MODEL).eval(), folder / "model.artifact", ExportConfig(name="model"))
    words = [str(folder / "model.artifact"), "--port", "0", "--metrics-port", "0", "--json"]
    words += ["--engine", "reference"]
    command = [sys.executable, "-m", "benchmarks.walks", _SERVE, str(folder / "walk.json"), *words]
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the server did not start")
            with Client(f"127.0.0.1:{json.loads(line)['port']}") as client:
                for order in ("", "record\n"):
                    process.stdin.write(order)
                    process.stdin.flush()
                    time.sleep(0.2)  # the server's thread reads the order
                    client.predict(
                        dense={"dense_features": [[0.1, 0.2, 0.3, 0.4]]}, sparse={"f0": [[1, 2]], "f1": [[3]]}
                    )
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()
    recorded = json.loads((folder / "walk.json").read_text())
    return Walk(
        raw_files=set(recorded["raw_files"]),
        raw_moves={(a, b, c, d) for a, b, c, d in recorded["raw_moves"]},
        moves={(a, b, c, d) for a, b, c, d in recorded["moves"]},
        entries=Counter(recorded["entries"]),
    )


def _serve(result: Path, words: Sequence[str]) -> int:
    """Run ``recsys-serve``; record from the first line of standard input to its end, which ends the server too."""
    tracer = _Tracer(("recsys", "serve"), _BESIDE_REQUESTS)
    tracer.is_recording = False

    def listen() -> None:
        for _ in sys.stdin:
            tracer.is_recording = True
        tracer.is_recording = False
        walk = tracer.walk
        content = {
            "raw_files": sorted(walk.raw_files),
            "raw_moves": sorted(walk.raw_moves),
            "moves": sorted(walk.moves),
            "entries": dict(walk.entries),
        }
        result.write_text(json.dumps(content))
        os.kill(os.getpid(), signal.SIGTERM)

    from serve.app import cli

    threading.Thread(target=listen, daemon=True).start()
    tracer.run(lambda: cli.main(words))
    return 0


WALKS: dict[str, Callable[[Path], Walk]] = {"export": _export, "step": _step, "predict": _predict}
#: The folder that each walk is about; the rest of its files are what that folder builds on.
_OWN_FOLDERS = {"export": "export/", "step": "recsys/sharding/", "predict": "serve/"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [_SERVE]:
        return _serve(Path(words[1]), words[2:])
    parser = make_parser("walks", __doc__)
    walks = f"of {', '.join(WALKS)}; all by default"
    # Without a word, argparse of Python 3.11 looks for an empty list among choices.
    parser.add_argument("walks", nargs="*", type=name_of(WALKS), metavar="WALK", help=walks)
    parser.add_argument(
        "--doors", action="store_true", help="list each file with the functions that others call"
    )
    return run(parser, words, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    found = {}
    for name in args.walks or WALKS:
        (folder / name).mkdir()
        found[name] = WALKS[name](folder / name)
    results = {
        name: {
            "files": sorted(walk.files),
            "num_moves": len(walk.moves),
            "num_raw_files": len(walk.raw_files),
            "num_raw_moves": len(walk.raw_moves),
            "doors": walk.doors(),
        }
        for name, walk in found.items()
    }
    rows = [
        {
            "walk": name,
            "files": str(len(walk.files)),
            "moves": str(len(walk.moves)),
            "of these": f"{walk.moves_within(_OWN_FOLDERS[name])} in {_OWN_FOLDERS[name]}",
            "raw files": str(len(walk.raw_files)),
            "raw moves": str(len(walk.raw_moves)),
            "entries": str(sum(walk.entries.values())),
        }
        for name, walk in found.items()
    ]
    shown = [table_of("walks", rows, texts=("walk", "of these"))]
    for name, walk in found.items() if args.doors else ():
        doors = [
            {"file": file, "doors": str(count), "entries": str(walk.entries[file])}
            for file, count in walk.doors().items()
        ]
        shown.append(table_of(name, doors))
    return Measured(data=results, shown=shown)


if __name__ == "__main__":
    sys.exit(main())
