"""The flags of TLS: what the HTTP API shows, and what its clients trust."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import click

from tpiedge.cli.trust import by_authority, by_fingerprint
from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.host.addresses import outgoing_host, own_names
from tpiedge.host.certificate import Certificate, own_certificate, read_certificate


@dataclass(frozen=True)
class ServerTls:
    """What the flags of the master say, checked when made. Raises UserError."""

    cert: Path | None
    key: Path | None
    self_signed: bool

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UserError("--tls-cert and --tls-key go together: give both")
        if self.self_signed and self.cert is not None:
            raise UserError(
                "--tls-self-signed makes a certificate of its own: leave --tls-cert and --tls-key out"
            )

    def certificate(self, folder: Path) -> Certificate | None:
        """None without TLS; a self-signed one is kept in `folder`. Raises UserError."""
        if self.cert is not None and self.key is not None:
            return read_certificate(self.cert, self.key)
        if not self.self_signed:
            return None
        hosts = dict.fromkeys(
            ("localhost", "127.0.0.1", "::1", *sorted(own_names()), outgoing_host() or "127.0.0.1")
        )
        return own_certificate(folder, hosts)


tls_cert_option = click.option(
    "--tls-cert",
    type=Location(dir_okay=False),
    help="PEM file with the API's certificate, and those up to its CA's: clients speak https.",
)
tls_key_option = click.option(
    "--tls-key", type=Location(dir_okay=False), help="PEM file with its key, for its owner alone."
)
tls_self_signed_option = click.option(
    "--tls-self-signed",
    is_flag=True,
    help="https with a certificate that is made once, in the state folder; clients compare its fingerprint.",
)
tls_ca_option = click.option(
    "--tls-ca",
    type=Location(dir_okay=False),
    help="PEM file with the certificate of the master's CA.  [default: the CAs of this computer]",
)
tls_fingerprint_option = click.option(
    "--tls-fingerprint", help="SHA-256 of the master's certificate, as it prints it at its start."
)


def trust_of(ca: Path | None, fingerprint: str | None) -> ssl.SSLContext | None:
    """What --tls-ca and --tls-fingerprint say; None where they say nothing. Raises UserError."""
    if ca is not None and fingerprint is not None:
        raise UserError("--tls-ca and --tls-fingerprint say whom to trust in two ways: give one")
    if fingerprint is not None:
        return by_fingerprint(fingerprint)
    return None if ca is None else by_authority(ca)
