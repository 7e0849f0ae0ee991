"""Generate the wire's Python code from ``protos/`` into ``serve/wire/``.

The descriptors keep the protocol's own file names (``recsys/v1/predict.proto``), as reflection and other
languages see them; the Python modules live in ``serve.wire``, because the Python package ``recsys`` is the
library and takes no generated code.

Example::

    python protos/generate.py            # writes serve/wire
    python protos/generate.py --out DIR  # writes elsewhere, to compare
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
#: Each becomes serve/wire/<name of the file>_pb2.py: names are unique across folders.
PROTOCOLS = (
    "recsys/v1/predict.proto",
    "recsys/v1/admin.proto",
    "recsys/v1/feedback.proto",
    "inference/open_inference.proto",
    "predictor/predictor.proto",
)
PACKAGE = "serve.wire"


def generate(out: Path) -> list[Path]:
    """Write the generated modules of every protocol to ``out``.

    Args:
        out: an existing directory.

    Returns:
        The files written.

    Raises:
        RuntimeError: the protocol compiler refused a file; its own text is on stderr.
    """
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        flags = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"--proto_path={PROTOS}", *flags, *PROTOCOLS]) != 0:
            raise RuntimeError("protos: the protocol compiler refused a file")
        made = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        return [_place(path, out) for path in made]


def _place(made: Path, out: Path) -> Path:
    """Copy one generated module, with its imports pointing to where the modules live."""
    text = made.read_text()
    for protocol in PROTOCOLS:
        package = str(Path(protocol).parent).replace("/", ".")
        text = text.replace(f"from {package} import", f"from {PACKAGE} import")
    target = out / made.name
    target.write_text(text)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PROTOS.parent / "serve" / "wire", help="where to write")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for path in generate(args.out):
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
