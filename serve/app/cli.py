"""recsys-serve: serve an artifact, or a repository of models, over gRPC until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from recsys.allocator import tune_malloc
from recsys.cli import Parser, add_program_options
from recsys.errors import ArtifactError
from serve.app.check_config import check, check_start, missing_packages, print_report
from serve.app.lifetime import serve
from serve.config.options import NONE, POSITIONAL, ConfigError, Option, Section, key_of, sections
from serve.config.settings import ProcessConfig, ServerConfig, SourceConfig
from serve.config.sources import Effective, effective
from serve.engine.choose import EngineError, choose_engine
from serve.errors import UnusableModelsError
from serve.models.repository import ModelSource, Repository, SingleArtifact
from serve.net.limits import allow_open_files, missing_open_files, num_ports
from serve.observe.logs import set_up_logging, shut_down_logging

_log = logging.getLogger("serve")
_EPILOG = """\
example:
  recsys-serve model.artifact --port 8500 --metrics-port 8501
  recsys-predict 127.0.0.1:8500 --random
  recsys-serve --repository models/ --models dlrm,ranker --config serve.toml
  recsys-serve --config serve.toml --check-config

Every setting can also stand in the file of --config or in the environment; a flag beats the environment, that beats
the file. docs/configuration.md has their names.

exit codes: 0 stopped with every accepted request answered, 1 failed, 2 bad usage, settings or artifact
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser: the arguments defined here, and a flag for each setting."""
    top = Parser(
        prog="recsys-serve",
        usage="recsys-serve [ARTIFACT | --repository DIR] [--config FILE] [--check-config] [setting ...]",
        description="Serve an artifact, or a repository of models, over gRPC until SIGTERM or SIGINT.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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


def _add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Add a setting's flag. Values stay strings: they are parsed like those of the environment."""
    about = option.about.replace("None", NONE).replace("``", "").replace("%", "%%")
    if option.default is not dataclasses.MISSING and option.default not in ("", ()):
        default = NONE if option.default is None else str(option.default)
        about += f" (default: {default.lower() if option.kind is bool else default})"
    if option.kind is not bool:
        metavar = {int: "N", float: "X", Path: "PATH"}.get(option.kind, "TEXT")  # type: ignore[call-overload]
        group.add_argument(option.flag, dest=option.key, metavar=metavar, help=about)
        return
    negative = "--no-" + option.flag.removeprefix("--")
    # The flag that changes the default comes first, with the help text.
    both = ((option.flag, "true", about), (negative, "false", f"turn off: {about}"))
    for flag, word, text in reversed(both) if option.default else both:
        changes = (word == "true") != option.default
        group.add_argument(
            flag,
            dest=option.key,
            action="store_const",
            const=word,
            help=text if changes else argparse.SUPPRESS,
        )


def _flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings that were given as arguments."""
    own = {"artifact", "config", "check_config", "json"}
    flags = {key: text for key, text in vars(args).items() if key not in own and text is not None}
    if args.artifact is not None:
        flags[key_of(POSITIONAL)] = args.artifact
    return flags


def source_of(found: Effective) -> ModelSource:
    """Return the source of the models.

    Raises:
        ConfigError: the settings name no source, or two.
        ArtifactError: the artifact cannot be read.
        ValueError: the repository cannot be read.
    """
    source: SourceConfig = found.settings.source
    origins = {path[1]: given.origin for path, given in found.given.items() if path[0] == "source"}
    if source.artifact is not None and source.repository is not None:
        raise ConfigError(
            f"source: got an artifact ({origins['artifact']}) and a repository ({origins['repository']}), "
            "expected one of them"
        )
    if source.artifact is not None:
        return SingleArtifact(source.artifact)
    if source.repository is not None:
        _check_deltas(found)
        return Repository(source.repository, source.models)
    raise ConfigError(
        "source: got neither an artifact nor a repository, expected ARTIFACT or --repository DIR"
    )


def _check_deltas(found: Effective) -> None:
    """Check that the models of a repository do not share a folder of deltas."""
    given = found.given.get(("defaults", "deltas"))
    if given is not None and given.value is not None:
        raise ConfigError(
            f"{given.origin}: defaults.deltas: got {str(given.value)!r} for all models of a repository, expected a "
            "folder for each, in its table of the file: [models.NAME] deltas"
        )


def set_process(process: ProcessConfig) -> None:
    """Apply the settings of the whole process: threads, allocator, the interpreter's lock."""
    torch.set_num_threads(process.intra_op_threads)
    sys.setswitchinterval(process.switch_interval_us * 1e-6)
    if process.malloc_tuning and not tune_malloc():
        _log.warning("this C library has no mallopt: the allocator stays as it is")


def freeze_imports() -> None:
    """Exclude imported modules from garbage collection. Call this before models are loaded.

    Modules and classes live as long as the process, and a collection that scans torch's takes about 0.2 s
    while requests wait. Models come and go, and must not be frozen.
    """
    gc.collect()
    gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)
    try:
        found = effective(_flags(args), os.environ, args.config).with_routing_file()
        source = source_of(found)
        if args.check_config:
            return _check(found, source, args.json)
        return _serve(
            found,
            source,
            args.json,
            lambda: effective(_flags(args), os.environ, args.config).settings.server,
        )
    except (ArtifactError, EngineError, ValueError) as error:
        print(f"recsys-serve: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"recsys-serve: {error}", file=sys.stderr)
        return 1


def _check(found: Effective, source: ModelSource, as_json: bool) -> int:
    findings = check(found.settings, source)
    print_report(found, findings, as_json=as_json)
    return 2 if any(finding.is_error for finding in findings) else 0


def _serve(
    found: Effective, source: ModelSource, as_json: bool, read_config: Callable[[], ServerConfig]
) -> int:
    settings = found.settings
    for text in missing_packages(settings.server):
        raise ConfigError(text)
    set_up_logging(settings.server.log)
    try:
        make_engine = choose_engine(settings.process.engine)
    except EngineError:
        shut_down_logging()
        raise
    errors = check_start(settings, source)
    if errors:
        shut_down_logging()
        for text in errors:
            print(f"recsys-serve: {text}", file=sys.stderr)
        return 2
    set_process(settings.process)
    freeze_imports()
    if settings.server.admin is not None and settings.server.admin.routing_file is None:
        _log.warning(
            "routing that operators set does not survive a restart: admin.routing_file names no file; "
            "pass --admin-routing-file FILE"
        )
    limits = settings.server.connections
    ports = num_ports(settings.server)
    allow_open_files(limits, ports)
    left = missing_open_files(limits, ports)
    if left:
        _log.warning(
            "max_connections is %d on each of %d ports, %d more in all than this process may have files for",
            limits.max_connections,
            ports,
            left,
        )
    try:
        code = asyncio.run(
            serve(source, settings.server, make_engine, as_json=as_json, read_config=read_config)
        )
    except UnusableModelsError as error:
        if settings.source.artifact is None:
            raise  # A repository's contents may differ at the next start.
        raise ConfigError(str(error)) from None
    # A batch may still be running, or a model loading. If Python ended that thread within native code, the
    # process would abort.
    shut_down_logging()
    # Lines on standard output were flushed as they were printed.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
