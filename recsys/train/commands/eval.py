"""recsys-eval: metrics of models on a table of examples, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from recsys.base.terminal import announced
from recsys.data.tables.schema_file import read_schema
from recsys.train.commands.eval_options import NUM_RESAMPLES, parse
from recsys.train.comparing.evaluation import Evaluation, EvaluationConfig, evaluate
from recsys.train.comparing.models import open_models
from recsys.train.comparing.page import write_page
from recsys.train.comparing.text import print_evaluation, to_json


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = parse(argv)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        evaluation = _evaluated(args)
        if args.page is not None:
            write_page(args.page, evaluation, args.top)
    except ValueError as error:
        sys.stderr.write(f"recsys-eval: {error}\n")
        return 2
    except (OSError, MemoryError, RuntimeError) as error:
        sys.stderr.write(f"recsys-eval: failed: {error}\n")
        return 1
    finally:
        torch.set_num_threads(threads_before)
    for notice in evaluation.notices:
        sys.stderr.write(f"recsys-eval: {notice}\n")
    if args.json:
        print(json.dumps(to_json(evaluation)))
    else:
        print_evaluation(evaluation, args.top)
    return 0


def _evaluated(args: argparse.Namespace) -> Evaluation:
    schema = None if args.schema is None else read_schema(args.schema)
    models = open_models(args.models, args.checkpoint, schema)
    num_resamples = args.bootstrap
    if num_resamples is None:
        num_resamples = NUM_RESAMPLES if len(args.models) > 1 else 0
    config = EvaluationConfig(
        held_out=args.held_out,
        limit_rows=args.limit_rows,
        group=args.group or "",
        item=args.item or "",
        top=args.top,
        slices=tuple(args.slices or ()),
        num_resamples=num_resamples,
    )
    with announced("recsys-eval", f"measuring on {args.data}"):
        return evaluate(models, args.data, config)


if __name__ == "__main__":
    sys.exit(main())
