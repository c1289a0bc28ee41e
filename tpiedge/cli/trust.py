"""Which TLS server is a client's master: by the fingerprint of its certificate, a CA's file, or this computer's CAs."""

import hmac
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.host.certificate import fingerprint_of

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
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", cause.strerror)
            return UserError(
                f"the certificate of {url} is not trusted ({why}): give --tls-fingerprint with what the master prints "
                "at its start, or its CA's certificate with --tls-ca"
            )
        if isinstance(cause, ssl.SSLError):
            return UserError(f"no TLS with {url} ({cause.reason or cause.strerror}): does it want http:// ?")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
