"""Options of the commands that are clients."""

from __future__ import annotations

import argparse

from recsys.options.kinds import PATH, SWITCH, number
from recsys.options.table import Group, Option
from serve.client.settings import ClientTls

TLS = Group(
    "TLS",
    (
        Option("--tls", SWITCH, "encrypt; trust the system's certificate authorities"),
        Option("--tls-ca", PATH, "encrypt; trust these certificate authorities", metavar="PEM"),
        Option(
            "--tls-certificate", PATH, "the client's certificate (mTLS)", metavar="PEM", old=("--tls-cert",)
        ),
        Option("--tls-key", PATH, "private key of --tls-certificate", metavar="PEM"),
    ),
)


def tls_of(args: argparse.Namespace) -> ClientTls | None:
    """Return what the options say; None for plain text.

    Raises:
        ValueError: only one of certificate and key is given.
    """
    tls = ClientTls(ca=args.tls_ca, certificate=args.tls_certificate, key=args.tls_key)
    return tls if args.tls or tls != ClientTls() else None


def timeout_option(about: str, default: float) -> Option:
    """Return the option ``--timeout-s``."""
    return Option("--timeout-s", number(above=0, metavar="S"), about, default=default)
