"""The command line of ``python -m recsys.as_torchrec``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from recsys.as_torchrec.listing import listed, names_json, names_text
from recsys.as_torchrec.rewrite.files import python_files, rewrite_file
from recsys.as_torchrec.run import run_module, run_script
from recsys.as_torchrec.table import load_table
from recsys.base.cli import Parser, add_program_options

_PROGRAM = "python -m recsys.as_torchrec"
_EXAMPLES = """\
examples:
  python -m recsys.as_torchrec train.py --epochs 2
  torchrun --nproc-per-node 2 -m recsys.as_torchrec train.py
  python -m recsys.as_torchrec --rewrite training/ --dry-run
  python -m recsys.as_torchrec --names planner

Exit status: of a script that is run, its own. Otherwise 0 all is well, 1 --rewrite leaves names as they are or --check
finds a file to rewrite, 2 wrong options or files.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = 2 if words[:1] == ["-m"] else 1 if words and not words[0].startswith("-") else len(words)
    parser = _parser()
    args = parser.parse_args(words[:own])
    if (args.check or args.dry_run) and args.rewrite is None:
        parser.error("--check and --dry-run are for --rewrite")
    if args.rewrite is not None:
        return _rewrite(args)
    if args.names is not None:
        names = listed(load_table(), args.names)
        print(json.dumps(names_json(names), indent=2) if args.json else names_text(names))
        return 0
    if args.module is not None:
        run_module(args.module, words[own:])
        return 0
    if args.script is None:
        parser.error("expected a script, -m MODULE, --rewrite or --names")
    if not args.script.exists():
        parser.error(f"script: got {args.script}, expected a file that exists")
    run_script(args.script, words[own:])
    return 0


def _rewrite(args: argparse.Namespace) -> int:
    table, is_dry = load_table(), args.check or args.dry_run
    try:
        files = [rewrite_file(path, table) for path in python_files(args.rewrite)]
        changed = [file for file in files if file.is_changed]
        for file in changed if not is_dry else ():
            file.write()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        return 2
    left = [(file.path, each) for file in files for each in file.by_hand]
    if args.json:
        by_hand = [{"path": str(path), **asdict(each)} for path, each in left]
        print(json.dumps({"rewritten": [str(file.path) for file in changed], "by_hand": by_hand}, indent=2))
    else:
        for file in changed:
            print(file.diff() if is_dry else f"{file.path}: rewritten")
        for path, each in left:
            print(f"{path}:{each.line}: {each.name}: {each.reason}")
        verb = "would be" if is_dry else "are"
        print(
            f"{len(changed)} of {len(files)} files {verb} rewritten, {len(left)} names are left as they are"
        )
    return 1 if left or (args.check and changed) else 0


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
        "--rewrite", nargs="+", type=Path, metavar="PATH", help="rewrite the imports in files and folders"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes, and write nothing")
    parser.add_argument(
        "--check", action="store_true", help="as --dry-run; the exit status is 1 if a file would change"
    )
    parser.add_argument(
        "--names",
        nargs="*",
        metavar="WORD",
        help="list TorchRec's names, defined here or left out and why; those whose path has one of the words",
    )
    parser.add_argument("--json", action="store_true", help="print --rewrite's report, or --names, as JSON")
    add_program_options(parser)
    return parser
