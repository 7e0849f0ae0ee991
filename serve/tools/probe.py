"""Check a server's health once, for probes over TLS: ``python -m serve.probe ADDRESS``.

The kubelet's gRPC probe supports only plain text. Torch is not imported, to keep the probe fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from recsys.base.cli import Parser

_EPILOG = """\
example:
  python -m serve.probe 127.0.0.1:8500 --service recsys.v1.PredictionService

exit codes: 0 SERVING (with --alive: any answer), 1 anything else, 2 bad usage
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="python -m serve.probe",
        usage="python -m serve.probe ADDRESS [option ...]",
        description="Ask a server's grpc.health.v1 service once.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("address", help="host:port of the server, or unix:PATH")
    top.add_argument("--service", default="", help="whose health; empty for the whole server's")
    top.add_argument("--alive", action="store_true", help="be content with any answer of the service")
    top.add_argument("--timeout-s", type=float, default=5.0, metavar="S", help="default: %(default)s")
    top.add_argument(
        "--ca", type=Path, help="PEM of who signs the server's certificate; TLS where it is given"
    )
    top.add_argument("--certificate", type=Path, help="PEM to show to a server that asks for one")
    top.add_argument("--key", type=Path, help="PEM of the certificate's private key")
    top.add_argument(
        "--server-name", help="the name in the server's certificate, where the address is another"
    )
    return top


def _channel(args: argparse.Namespace) -> grpc.Channel:
    if args.ca is None:
        return grpc.insecure_channel(args.address)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=args.ca.read_bytes(),
        private_key=args.key.read_bytes() if args.key else None,
        certificate_chain=args.certificate.read_bytes() if args.certificate else None,
    )
    options = [("grpc.ssl_target_name_override", args.server_name)] if args.server_name else []
    return grpc.secure_channel(args.address, credentials, options=options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    top = parser()
    args = top.parse_args(argv)
    if (args.certificate is None) != (args.key is None):
        top.error("--certificate and --key: got one of them, expected both or none")
    if args.ca is None and (args.certificate or args.server_name):
        top.error("--certificate, --key and --server-name need --ca")
    if not args.timeout_s > 0:
        top.error(f"--timeout-s: got {args.timeout_s}, expected more than 0")
    try:
        with _channel(args) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=args.service), timeout=args.timeout_s
            )
    except OSError as error:
        top.error(str(error))
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}")
        return 1
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    return 0 if args.alive or answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
