"""recsys-serve: serve an artifact over gRPC until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from recsys.allocator import tune_malloc
from recsys.errors import ArtifactError
from serve.batching import BatchLimits
from serve.config import ServerConfig
from serve.lifetime import serve
from serve.loading import load_model

_EPILOG = """\
example:
  recsys-serve runs/dlrm.artifact --port 8500 --metrics-port 8501
  recsys-predict 127.0.0.1:8500 --random

exit codes: 0 stopped with every accepted request answered, 1 failed, 2 bad usage or artifact
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    defaults, limits = ServerConfig(), BatchLimits()
    top = argparse.ArgumentParser(
        prog="recsys-serve",
        description="Serve an artifact over gRPC until SIGTERM or SIGINT.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("artifact", type=Path, help="what recsys-export wrote")
    top.add_argument("--target", help="which of the artifact's targets (default: the first that fits)")
    top.add_argument("--no-verify-checksums", action="store_true", help="start without reading every byte")
    listen = top.add_argument_group("listening")
    listen.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    listen.add_argument(
        "--port",
        type=int,
        default=defaults.port,
        help="gRPC; 0 lets the system choose (default: %(default)s)",
    )
    metrics = listen.add_mutually_exclusive_group()
    metrics.add_argument(
        "--metrics-port",
        type=int,
        default=defaults.metrics_port,
        help="Prometheus; 0 lets the system choose (default: %(default)s)",
    )
    metrics.add_argument("--no-metrics", action="store_true", help="serve no metrics")
    batching = top.add_argument_group("batching (docs/serving.md)")
    for field in fields(BatchLimits):
        what, kind = field.name.removeprefix("max_").split("_")
        batching.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=int,
            metavar="N",
            default=getattr(limits, field.name),
            help=f"{kind.replace('ids', 'IDs')} of one {what} (default: %(default)s)".replace(
                "of one queue", "that may wait"
            ),
        )
    batching.add_argument(
        "--max-message-bytes",
        type=int,
        metavar="N",
        default=defaults.max_message_bytes,
        help="of one serialized request (default: %(default)s)",
    )
    batching.add_argument(
        "--allow-non-finite", action="store_true", help="let NaN and infinities reach the model"
    )
    run = top.add_argument_group("running")
    run.add_argument(
        "--executors",
        type=int,
        metavar="N",
        default=1,
        help="batches that run at once (default: %(default)s)",
    )
    run.add_argument(
        "--intra-op-threads",
        type=int,
        metavar="N",
        default=1,
        help="torch's own threads (default: %(default)s)",
    )
    run.add_argument("--no-malloc-tuning", action="store_true", help="leave the C allocator as it is")
    run.add_argument(
        "--switch-interval-us",
        type=int,
        metavar="N",
        default=_SWITCH_INTERVAL_US,
        help="how long one Python thread may keep another waiting (default: %(default)s)",
    )
    run.add_argument(
        "--drain-timeout-s",
        type=float,
        metavar="S",
        default=defaults.drain_timeout_s,
        help="for accepted requests, after SIGTERM (default: %(default)s)",
    )
    run.add_argument("--json", action="store_true", help="print the ready and stopped lines as JSON")
    return top


# Python's own 5 ms would let the event loop keep an executor waiting for longer than a batch takes.
_SWITCH_INTERVAL_US = 200


def _config(args: argparse.Namespace) -> ServerConfig:
    return ServerConfig(
        host=args.host,
        port=args.port,
        metrics_port=None if args.no_metrics else args.metrics_port,
        limits=BatchLimits(**{field.name: getattr(args, field.name) for field in fields(BatchLimits)}),
        max_message_bytes=args.max_message_bytes,
        allow_non_finite=args.allow_non_finite,
        num_executors=args.executors,
        drain_timeout_s=args.drain_timeout_s,
    )


def _set_process(args: argparse.Namespace) -> None:
    """What holds for the whole process: threads, allocator, the interpreter's lock."""
    for name in ("intra_op_threads", "switch_interval_us"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name}: got {getattr(args, name)}, expected at least 1")
    torch.set_num_threads(args.intra_op_threads)
    sys.setswitchinterval(args.switch_interval_us * 1e-6)
    if not args.no_malloc_tuning and not tune_malloc():
        logging.getLogger("serve").warning("this C library has no mallopt: the allocator stays as it is")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = _config(args)
        _set_process(args)
        model, info = load_model(args.artifact, args.target, verify_checksums=not args.no_verify_checksums)
    except (ArtifactError, ValueError) as error:
        print(f"recsys-serve: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(serve(model, info, config, as_json=args.json))
    except (OSError, RuntimeError) as error:
        print(f"recsys-serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
