"""The options of recsys-serve."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

from recsys.base.cli import Parser, add_program_options
from serve.config.options import all_options, sections

_EPILOG = """\
examples:
  recsys-serve model.artifact --port 8500 --metrics-port 8501
  recsys-predict 127.0.0.1:8500 --random
  recsys-serve --repository models/ --models dlrm,ranker --config serve.toml
  recsys-serve --repository s3://bucket/models --poll-repository-s 10
  recsys-serve --config serve.toml --check-config

--help-all shows all settings. Each can also stand in the file of --config or in the environment; a flag beats the
environment, that beats the file. docs/serve/configuration.md has their names. --config, --check-config and --json
say what the command does, are no settings, and can stand on the command line alone.

exit codes: 0 stopped with every accepted request answered, 1 failed, 2 bad usage, settings or artifact
"""


# The settings of --help; --help-all has all of them.
_COMMON = frozenset(
    {
        *("ARTIFACT", "--repository", "--engine", "--host", "--port", "--metrics-port", "--http-port"),
        *("--executors", "--deltas", "--max-batch-rows", "--max-queue-rows", "--max-delay-us"),
        *("--tls-certificate", "--tls-key", "--admin-token-file", "--log-as-json", "--log-requests"),
    }
)


class _Help(argparse.Action):
    """Print the help of the settings in ``const``, or of all, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Called by argparse."""
        _parser(self.const).print_help()
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser: the arguments defined here, and a flag for each setting."""
    return _parser(None)


def _parser(only: Collection[str] | None) -> argparse.ArgumentParser:
    """Return the parser of some settings, by name, or of all, with what their sections are about."""
    top = Parser(
        prog="recsys-serve",
        usage="recsys-serve [ARTIFACT | --repository DIR] [--config FILE] [--check-config] [setting ...]",
        description="Serve an artifact, or a repository of models, over gRPC until SIGTERM or SIGINT.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    for names, shown, text in ((("-h", "--help"), _COMMON, "common"), (("--help-all",), None, "all")):
        top.add_argument(
            *names,
            action=_Help,
            nargs=0,
            const=shown,
            default=argparse.SUPPRESS,
            help=f"show {text} settings and exit",
        )
    top.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    top.add_argument(
        "--check-config",
        action="store_true",
        help="print the settings that hold, look at all they name, and stop",
    )
    top.add_argument(
        "--json", action="store_true", help="print the ready and stopped lines, or the check, as JSON"
    )
    add_program_options(top)
    for section in sections():
        options = [option for option in section.options if only is None or option.name in only]
        if options:
            title, about = ".".join(section.path) or "server", section.about if only is None else None
            group = top.add_argument_group(title, about)
            for option in options:
                option.add_to(group)
    return top


def flags_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings that were given as arguments, by key."""
    given = vars(args)
    return {option.key: given[option.key] for option in all_options(sections()) if option.key in given}
