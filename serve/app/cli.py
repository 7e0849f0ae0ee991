"""recsys-serve: serve an artifact, or a repository of models, over gRPC until SIGTERM.

The settings are read and checked before torch is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from recsys.base.cli import imported
from recsys.errors import ArtifactError
from recsys.options.kinds import ConfigError
from serve.app.check_start import check_start, missing_packages
from serve.app.options import flags_of, parser
from serve.config.settings import SourceConfig
from serve.config.sources import Effective, effective
from serve.errors import EngineError
from serve.models.repository import ModelSource, Repository, SingleArtifact
from serve.observe.logs import set_up_logging, shut_down_logging


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)

    def read() -> Effective:
        return effective(flags_of(args), os.environ, args.config)

    try:
        found = read().with_routing_file()
        source = source_of(found)
        if args.check_config:
            return int(imported("serve.app.start").check_all(found, source, as_json=args.json))
        for text in missing_packages(found.settings.server):
            raise ConfigError(text)
        set_up_logging(found.settings.server.log)
        try:
            errors = check_start(found.settings, source)
            if not errors:
                start = imported("serve.app.start")
                return int(start.serve_to_the_end(found, source, read, as_json=args.json))
        finally:
            shut_down_logging()
    except (ArtifactError, EngineError, ValueError) as error:
        errors = [str(error)]
    except (OSError, RuntimeError) as error:
        print(f"recsys-serve: {error}", file=sys.stderr)
        return 1
    for text in errors:
        print(f"recsys-serve: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
