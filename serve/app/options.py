"""The options of recsys-serve."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from recsys.base.cli import Parser, add_program_options
from recsys.options.kinds import SWITCH
from serve.config.options import NONE, POSITIONAL, Section, Setting, key_of, sections

_EPILOG = """\
examples:
  recsys-serve model.artifact --port 8500 --metrics-port 8501
  recsys-predict 127.0.0.1:8500 --random
  recsys-serve --repository models/ --models dlrm,ranker --config serve.toml
  recsys-serve --config serve.toml --check-config

--help-all shows all settings. Each can also stand in the file of --config or in the environment; a flag beats the
environment, that beats the file. docs/serve/configuration.md has their names.

exit codes: 0 stopped with every accepted request answered, 1 failed, 2 bad usage, settings or artifact
"""


# The settings of --help; --help-all has all of them.
_COMMON = frozenset(
    {
        *("--repository", "--engine", "--host", "--port", "--metrics-port", "--http-port"),
        *("--executors", "--deltas", "--max-batch-rows", "--max-queue-rows", "--max-delay-us"),
        *("--tls-certificate", "--tls-key", "--admin-token-file", "--log-as-json", "--log-requests"),
    }
)


class _Help(argparse.Action):
    """Print the help of the common settings (``const``), or of all, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Called by argparse."""
        if self.const:
            _leave_common(parser)
        parser.print_help()
        parser.exit()


def _leave_common(top: argparse.ArgumentParser) -> None:
    """Hide all settings that are not common, and what groups are about: so groups without a common one are left out."""
    for group in top._action_groups[2:]:
        group.description = None
        for action in group._group_actions:
            if not _COMMON & set(action.option_strings):
                action.help = argparse.SUPPRESS


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser: the arguments defined here, and a flag for each setting."""
    top = Parser(
        prog="recsys-serve",
        usage="recsys-serve [ARTIFACT | --repository DIR] [--config FILE] [--check-config] [setting ...]",
        description="Serve an artifact, or a repository of models, over gRPC until SIGTERM or SIGINT.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    for names, is_short, text in ((("-h", "--help"), True, "common"), (("--help-all",), False, "all")):
        top.add_argument(
            *names,
            action=_Help,
            nargs=0,
            const=is_short,
            default=argparse.SUPPRESS,
            help=f"show {text} settings and exit",
        )
    top.add_argument(
        "artifact", nargs="?", metavar="ARTIFACT", help="what recsys-export wrote; or --repository"
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
        _add_section(top, section)
    return top


def _add_section(top: argparse.ArgumentParser, section: Section) -> None:
    group = top.add_argument_group(".".join(section.path) or "server", section.about)
    for option in section.options:
        if option.path == POSITIONAL:
            continue
        if option.path == ("process", "engine"):
            either = group.add_mutually_exclusive_group()
            _add_option(either, option)
            either.add_argument(
                "--native", dest=option.key, action="store_const", const="native", help="--engine native"
            )
        elif option.path == ("metrics_port",):
            either = group.add_mutually_exclusive_group()
            _add_option(either, option)
            either.add_argument(
                "--no-metrics", dest=option.key, action="store_const", const=NONE, help="serve no metrics"
            )
        else:
            _add_option(group, option)


def _add_option(group: argparse._ActionsContainer, option: Setting) -> None:
    """Add a setting's flag. Values stay strings: they are parsed like those of the environment."""
    about = option.about.replace("None", NONE).replace("``", "").replace("%", "%%")
    if option.default is not dataclasses.MISSING and option.default not in ("", ()):
        default = NONE if option.default is None else str(option.default)
        about += f" (default: {default.lower() if option.kind is SWITCH else default})"
    if option.kind is not SWITCH:
        group.add_argument(option.name, dest=option.key, metavar=option.kind.metavar, help=about)
        return
    negative = "--no-" + option.name.removeprefix("--")
    # The flag that changes the default comes first, with the help text.
    both = ((option.name, "true", about), (negative, "false", f"turn off: {about}"))
    for flag, word, text in reversed(both) if option.default else both:
        changes = (word == "true") != option.default
        group.add_argument(
            flag,
            dest=option.key,
            action="store_const",
            const=word,
            help=text if changes else argparse.SUPPRESS,
        )


def flags_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings that were given as arguments."""
    own = {"artifact", "config", "check_config", "json"}
    flags = {key: text for key, text in vars(args).items() if key not in own and text is not None}
    if args.artifact is not None:
        flags[key_of(POSITIONAL)] = args.artifact
    return flags
