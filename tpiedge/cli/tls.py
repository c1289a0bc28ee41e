"""TLS between clients and a master: whose certificate is a client's master, and what the HTTP API shows."""

import hmac
import re
import ssl
from pathlib import Path

import click

from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.host.addresses import outgoing_host, own_names
from tpiedge.host.certificate import Certificate, fingerprint_of, own_certificate, read_certificate

_HEX = re.compile(r"[0-9a-f]{64}")


class _Pinned(ssl.SSLContext):
    """Trusts one certificate, whatever names are in it."""

    fingerprint: str


class _PinnedSocket(ssl.SSLSocket):
    """Ends a handshake with another certificate than the one: before a byte of the request is sent."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        found = fingerprint_of(self.getpeercert(True) or b"")
        if isinstance(self.context, _Pinned) and not hmac.compare_digest(found, self.context.fingerprint):
            raise ssl.SSLCertVerificationError(1, f"its SHA-256 fingerprint is {found}")


def by_fingerprint(text: str) -> ssl.SSLContext:
    """`text`: SHA-256 in hex, with colons or without. Raises UserError."""
    fingerprint = text.strip().replace(":", "").lower()
    if not _HEX.fullmatch(fingerprint):
        raise UserError(
            "the fingerprint is not a SHA-256, which has 64 hex digits: the master prints it at its start"
        )
    context = _Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is looked at instead, and says more
    context.fingerprint = fingerprint
    context.sslsocket_class = _PinnedSocket
    return context


def by_authority(path: Path) -> ssl.SSLContext:
    """Certificates that those in `path` signed, or that are in it, and that name the host. Raises UserError."""
    try:
        return ssl.create_default_context(cafile=path)
    except FileNotFoundError:
        raise UserError(f"there is no file {path} with certificates") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise UserError(f"cannot take certificates from {path} ({reason}): is it in PEM?") from None


def refusal_of(error: BaseException, url: str) -> UserError | None:
    """What to tell the user where `error` came of TLS; None where it did not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", cause.strerror)
            return UserError(
                f"the certificate of {url} is not trusted ({why}): give --tls-fingerprint with what the master prints "
                "at its start, or its CA's certificate with --tls-ca"
            )
        if isinstance(cause, ssl.SSLError):
            return UserError(f"no TLS with {url} ({cause.reason or cause.strerror}): does it want http:// ?")
        cause = cause.__cause__ or cause.__context__
    return None


def check_server_tls(cert: Path | None, key: Path | None, self_signed: bool) -> None:
    """Raises UserError for flags of a master that contradict each other."""
    if (cert is None) != (key is None):
        raise UserError("--tls-cert and --tls-key go together: give both")
    if self_signed and cert is not None:
        raise UserError(
            "--tls-self-signed makes a certificate of its own: leave --tls-cert and --tls-key out"
        )


def server_certificate(
    cert: Path | None, key: Path | None, self_signed: bool, folder: Path
) -> Certificate | None:
    """What the flags of a master say; None without TLS. A self-signed one is kept in `folder`. Raises UserError."""
    if cert is not None and key is not None:
        return read_certificate(cert, key)
    if not self_signed:
        return None
    own = (*sorted(own_names()), outgoing_host() or "127.0.0.1")
    return own_certificate(folder, dict.fromkeys(("localhost", "127.0.0.1", "::1", *own)))


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
