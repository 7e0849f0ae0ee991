"""Check a server's health once, for probes over TLS: ``python -m serve.probe ADDRESS``.

The kubelet's gRPC probe supports only plain text. Torch is not imported, to keep the probe fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from recsys.options.kinds import PATH, SWITCH, TEXT, number
from recsys.options.table import Command, Group, Option

COMMAND = Command(
    program="python -m serve.probe",
    about="Ask a server's grpc.health.v1 service once.",
    epilog="""\
example:
  python -m serve.probe 127.0.0.1:8500 --service recsys.v1.PredictionService

exit codes: 0 SERVING (with --alive: any answer), 1 anything else, 2 bad usage
""",
    groups=(
        Group(
            "",
            (
                Option("address", TEXT, "host:port of the server, or unix:PATH", required=True),
                Option("--service", TEXT, "whose health; empty for the whole server's", default=""),
                Option("--alive", SWITCH, "be content with any answer of the service"),
                Option("--timeout-s", number(above=0, metavar="S"), "for the answer", default=5.0),
                Option(
                    "--ca",
                    PATH,
                    "who signs the server's certificate; TLS where it is given",
                    metavar="PEM",
                ),
                Option("--certificate", PATH, "to show to a server that asks for one", metavar="PEM"),
                Option("--key", PATH, "private key of --certificate", metavar="PEM"),
                Option(
                    "--server-name",
                    TEXT,
                    "the name in the server's certificate, where the address is another",
                ),
            ),
        ),
    ),
)


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
    args = COMMAND.parse(argv)
    top = COMMAND.parser()
    if (args.certificate is None) != (args.key is None):
        top.error("--certificate and --key: got one of them, expected both or none")
    if args.ca is None and (args.certificate or args.server_name):
        top.error("--certificate, --key and --server-name need --ca")
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
