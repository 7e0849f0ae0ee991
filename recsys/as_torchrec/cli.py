"""The command line of ``python -m recsys.as_torchrec``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from recsys.as_torchrec.listing import listed, names_json, names_text
from recsys.as_torchrec.run import run_module, run_script
from recsys.as_torchrec.table import load_table
from recsys.cli import Parser, add_program_options

_PROGRAM = "python -m recsys.as_torchrec"
_EXAMPLES = """\
examples:
  python -m recsys.as_torchrec train.py --epochs 2
  torchrun --nproc-per-node 2 -m recsys.as_torchrec train.py
  python -m recsys.as_torchrec --names planner

Exit status: 0 all is well, 2 wrong options or files; of a script that is run, its own.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = 2 if words[:1] == ["-m"] else 1 if words and not words[0].startswith("-") else len(words)
    parser = _parser()
    args = parser.parse_args(words[:own])
    if args.names is not None:
        names = listed(load_table(), args.names)
        print(json.dumps(names_json(names), indent=2) if args.json else names_text(names))
        return 0
    if args.module is not None:
        run_module(args.module, words[own:])
        return 0
    if args.script is None:
        parser.error("expected a script, -m MODULE or --names")
    if not args.script.exists():
        parser.error(f"script: got {args.script}, expected a file that exists")
    run_script(args.script, words[own:])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_PROGRAM,
        description="Run code that imports torchrec with this library in its place.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "script", nargs="?", type=Path, help="run this script; the words after it are its own"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run this module instead")
    parser.add_argument(
        "--names",
        nargs="*",
        metavar="WORD",
        help="list TorchRec's names, defined here or left out and why; those whose path has one of the words",
    )
    parser.add_argument("--json", action="store_true", help="list as JSON")
    add_program_options(parser)
    return parser
