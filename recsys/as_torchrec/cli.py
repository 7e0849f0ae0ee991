"""The command line of ``python -m recsys.as_torchrec``."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recsys.as_torchrec import spawned
from recsys.as_torchrec.hook import install
from recsys.as_torchrec.rewrite.files import python_files, rewrite_file
from recsys.as_torchrec.table import Name, Table, load_table
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
    _run_script(args.script, words[own:])
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


def listed(table: Table, words: Sequence[str]) -> list[Name]:
    """Return the names whose paths hold one of the words, in the order of their paths.

    Args:
        table: All names.
        words: Parts of paths, in any case; none for all names.
    """
    lower = [word.lower() for word in words]
    found = (entry for entry in table if not lower or any(word in entry.path.lower() for word in lower))
    return sorted(found, key=lambda entry: (entry.module, entry.name))


def names_json(names: Sequence[Name]) -> list[dict[str, Any]]:
    """Return names as values for JSON: what does not apply to a name is left away."""
    return [
        {
            "name": entry.path,
            **({"ours": entry.ours} if entry.ours is not None else {"left_out": entry.left_out}),
            **({"signature": entry.signature} if entry.signature is not None else {}),
            **({"without": dict(entry.without)} if entry.without else {}),
        }
        for entry in names
    ]


def names_text(names: Sequence[Name]) -> str:
    """Return names by module, a line each, and how many they are."""
    lines, module = list[str](), ""
    width = max((len(entry.name) for entry in names), default=0)
    for entry in names:
        if entry.module != module:
            module = entry.module
            lines.append(module)
        what = entry.ours if entry.ours is not None else f"left out: {entry.left_out}"
        lines.append(f"  {entry.name:{width}}  {what}")
        if entry.signature is not None:
            lines.append(f"  {'':{width}}  signature: {entry.signature}")
        lines.extend(f"  {'':{width}}  without {name}: {reason}" for name, reason in entry.without.items())
    num_defined = sum(entry.ours is not None for entry in names)
    lines.append(f"{num_defined} names are defined, {len(names) - num_defined} are left out")
    return "\n".join(lines)


#: Python's variable for folders that come before the installed packages.
_PYTHONPATH = "PYTHONPATH"


def _run_script(script: Path, args: Sequence[str]) -> None:
    """Run a script as ``python script args`` does.

    Args:
        script: Its file.
        args: What it finds in ``sys.argv[1:]``.
    """
    _prepare()
    sys.path.insert(1, str(script.resolve().parent))
    sys.argv = [str(script), *args]
    runpy.run_path(str(script), run_name="__main__")


def run_module(module: str, args: Sequence[str]) -> None:
    """Run a module as ``python -m module args`` does.

    Args:
        module: Its name.
        args: What it finds in ``sys.argv[1:]``.
    """
    _prepare()
    sys.path.insert(1, str(Path.cwd()))
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prepare() -> None:
    """Install the hook here, and for later processes the folder whose ``torchrec`` installs it.

    ``python -m recsys.as_torchrec`` has put the current folder first: it goes, as for a script, unless this package
    itself lies there.
    """
    install()
    (folder,) = spawned.__path__
    root = str(Path(__file__).resolve().parents[2])
    here = sys.path[:1] if sys.path[:1] == [str(Path.cwd())] else []
    paths = sys.path[len(here) :]
    own = [root] if here == [root] and root not in paths else []
    sys.path[:] = [folder, *paths, *own]
    before = [path for path in os.environ.get(_PYTHONPATH, "").split(os.pathsep) if path]
    os.environ[_PYTHONPATH] = os.pathsep.join([folder, *(path for path in before if path != folder), *own])
