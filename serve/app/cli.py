"""recsys-serve: serve an artifact, or a repository of models, over gRPC until SIGTERM.

The settings are read and checked before torch is imported.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from recsys.artifact.remote.cache import ArtifactCache
from recsys.base.cli import imported
from recsys.base.remote import AddressError, RemoteError, parse_address
from recsys.errors import ArtifactError
from recsys.options.kinds import ConfigError
from serve.app.check_start import StartError, check_start, missing_packages
from serve.app.options import flags_of, parser
from serve.config.settings import SourceConfig
from serve.config.sources import Effective, effective
from serve.errors import EngineError
from serve.models.repository import ModelSource, Repository, SingleArtifact
from serve.models.stored import StoredRepository, StoredSingleArtifact
from serve.observe.logs import set_up_logging, shut_down_logging

_log = logging.getLogger("serve")


def source_of(found: Effective, *, is_check: bool = False) -> ModelSource:
    """Return the source of the models.

    Args:
        found: the settings.
        is_check: whether it is only looked at.

    Raises:
        ConfigError: the settings name no source, or two.
        ArtifactError: the artifact cannot be read.
        RemoteError: its store cannot be asked.
    """
    source: SourceConfig = found.settings.source
    origins = {path[1]: given.origin for path, given in found.given.items() if path[0] == "source"}
    if source.artifact is not None and source.repository is not None:
        raise ConfigError(
            f"source: got an artifact ({origins['artifact']}) and a repository ({origins['repository']}), "
            "expected one of them"
        )
    if source.repository is not None:
        _check_deltas(found)
    try:
        made = _source(source, is_check=is_check)
    except AddressError as error:
        key = "repository" if source.artifact is None else "artifact"
        raise ConfigError(f"source.{key}: {error}") from None
    if made is not None:
        return made
    raise ConfigError(
        "source: got neither an artifact nor a repository, expected ARTIFACT or --repository DIR"
    )


def _source(source: SourceConfig, *, is_check: bool) -> ModelSource | None:
    """Return the source that the settings name; None if they name none.

    Raises:
        AddressError: a package is missing that opens a store.
    """
    cache = ArtifactCache(source.artifact_cache, source.artifact_cache_bytes)
    if isinstance(source.artifact, str):
        return StoredSingleArtifact(parse_address(source.artifact), cache)
    if isinstance(source.repository, str):
        address = parse_address(source.repository)
        return StoredRepository(address, source.models, cache, starts_from_copies=not is_check)
    if source.artifact is not None:
        return SingleArtifact(source.artifact)
    return None if source.repository is None else Repository(source.repository, source.models)


def _check_deltas(found: Effective) -> None:
    """Check that the models of a repository do not share a stream of deltas."""
    given = found.given.get(("defaults", "deltas"))
    if given is not None and given.value is not None:
        raise ConfigError(
            f"{given.origin}: defaults.deltas: got {str(given.value)!r} for all models of a repository, expected a "
            "stream for each, in its table of the file: [models.NAME] deltas"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)

    def read() -> Effective:
        return effective(flags_of(args), os.environ, args.config)

    try:
        found = read().with_routing_file()
        source = source_of(found, is_check=args.check_config)
        if args.check_config:
            return int(imported("serve.app.start").check_all(found, source, as_json=args.json))
        for text in missing_packages(found.settings.server):
            raise ConfigError(text)
    except (ArtifactError, ConfigError) as error:
        return _failed(2, [str(error)])
    except RemoteError as error:
        return _failed(1, [f"source: {error}"])
    set_up_logging(found.settings.server.log)
    try:
        code, errors = _serve(found, source, read, as_json=args.json)
    finally:
        shut_down_logging()
    return _failed(code, errors)


def _serve(
    found: Effective, source: ModelSource, read: Callable[[], Effective], *, as_json: bool
) -> tuple[int, list[str]]:
    """Check the rest and serve, which ends the process; or return the exit code and why nothing is served."""
    try:
        errors = check_start(found.settings, source)
        if errors:
            return 2, errors
        start = imported("serve.app.start")
        make_engine = start.prepare(found.settings, source)
    except (ArtifactError, ConfigError, EngineError) as error:
        return 2, [str(error)]
    except RemoteError as error:  # the next start may find its store
        return 1, [f"source: {error}"]
    try:
        start.serve_to_the_end(found, source, make_engine, read, as_json=as_json)
    except StartError as error:
        return error.exit_code, [str(error)]
    except MemoryError:
        raise  # The command says how much this process may have.
    except Exception:
        _log.exception("the server failed")
    return 1, []


def _failed(code: int, errors: Iterable[str]) -> int:
    """Write what is wrong, and return the exit code."""
    for text in errors:
        print(f"recsys-serve: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
