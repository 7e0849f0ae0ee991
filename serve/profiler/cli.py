"""recsys-profile: the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from recsys.artifact.batches.samples import read_samples
from recsys.artifact.parts import read_manifest
from recsys.base.files import replacing
from recsys.errors import ArtifactError
from serve.bench.load.requests import Mix
from serve.profiler.batches import Shape
from serve.profiler.options import BATCH_SIZES, parse
from serve.profiler.report.page import page
from serve.profiler.report.terminal import print_profile
from serve.profiler.rounds import RoundsConfig
from serve.profiler.run import Options, run

_TURN_S = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    args = parse(argv)
    if args.no_html and args.html is not None:
        print("recsys-profile: --html: got it with --no-html, expected one of them", file=sys.stderr)
        return 2
    mix = mix_of(args.batch_sizes, args.mix)
    out = args.html or (None if args.no_html or args.json else Path("profile.html"))
    try:
        if out is not None and not out.parent.is_dir():
            raise ValueError(f"--html: got {str(out)!r}, whose folder does not exist")
        profile = run(_options(args, mix), _progress())
        if out is not None:
            with replacing(out) as partial:
                partial.write_text(page(profile), encoding="utf-8")
    except (ArtifactError, ValueError, OSError) as error:
        print(f"recsys-profile: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-profile: interrupted, nothing was written", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(profile.to_json()))
        return 0
    print_profile(profile)
    if out is not None:
        print(out)
    return 0


def mix_of(batch_sizes: Sequence[int] | None, mix: Mapping[int, float] | None) -> dict[int, float]:
    """Return the share of batches of each size that is measured; the sum is 1.

    Args:
        batch_sizes: Sizes to measure; None for those of the mix, or the usual ones.
        mix: Weights by size; None for the same of all sizes.
    """
    weights = mix or dict.fromkeys(batch_sizes or BATCH_SIZES, 1.0)
    total = sum(weights.values())
    sizes = sorted({*weights, *(batch_sizes or ())})
    return {size: weights.get(size, 0.0) / total for size in sizes}


def _options(args: argparse.Namespace, mix: Mapping[int, float]) -> Options:
    manifest = read_manifest(args.artifact)
    samples = None if args.samples is None else read_samples(args.samples, manifest.signature)
    shape = Shape(
        ids_per_bag=args.ids_per_bag or Mix.of(1),
        zipf=args.zipf,
        ranking=args.ranking,
        samples=samples,
        examples=None if args.random_inputs else manifest.example_batch(),
        has_bag_sizes=args.ids_per_bag is not None,
    )
    return Options(
        artifact=args.artifact,
        mix=mix,
        target=args.target,
        shape=shape,
        scripted=args.scripted,
        copy_rows=args.copy_rows,
        rounds=RoundsConfig(num_rounds=args.rounds, turn_s=_TURN_S, clock="cpu"),
        seconds=args.seconds,
        seed=args.seed,
    )


def _progress() -> Callable[[str], None]:
    """Return a function that shows on stderr what is measured."""
    console = Console(stderr=True, soft_wrap=True)
    began_s = time.monotonic()

    def show(what: str) -> None:
        after = f"{time.monotonic() - began_s:.0f} s"
        console.print(f"recsys-profile: measuring {what} … ({after})", style="dim", highlight=False)

    return show
