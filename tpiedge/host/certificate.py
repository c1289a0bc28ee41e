"""A TLS server's certificate, from files or made by the command `openssl`."""

import hashlib
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpiedge.errors import UserError
from tpiedge.host.private_file import private_bytes, private_folder
from tpiedge.sanitise import sanitised_line

_CERT, _KEY = "tls-cert.pem", "tls-key.pem"
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,200}[a-z0-9])?")
_ADDRESS: Final = re.compile(r"[0-9.]+|[0-9a-f:]*:[0-9a-f:.]*")


@dataclass(frozen=True)
class Certificate:
    """A server's certificate. `fingerprint`: its SHA-256 in hex."""

    context: ssl.SSLContext
    fingerprint: str

    @property
    def shown(self) -> str:
        pairs = (self.fingerprint[at : at + 2] for at in range(0, len(self.fingerprint), 2))
        return ":".join(pairs).upper()


def fingerprint_of(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def read_certificate(cert: Path, key: Path) -> Certificate:
    """Reads a certificate chain and its key, both in PEM. Raises UserError."""
    try:
        with cert.open("rb") as file:
            text = file.read(1 << 20).decode("ascii", "replace")
    except OSError as error:
        raise UserError(f"cannot read the certificate {cert}: {error.strerror}") from None
    found = _PEM.search(text)
    try:
        der = b"" if found is None else ssl.PEM_cert_to_DER_cert(found[0])
    except ValueError:
        der = b""
    if not der:
        raise UserError(f"{cert} is no certificate in PEM: it would begin with -----BEGIN CERTIFICATE-----")
    try:
        if b"ENCRYPTED" in private_bytes(key):
            raise UserError(f"{key} is encrypted: decrypt it with 'openssl pkey -in {key} -out NEW'")
    except FileNotFoundError:
        raise UserError(f"there is no key of the certificate at {key}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            raise UserError(f"the key in {key} is not that of the certificate in {cert}") from None
        raise UserError(f"TLS cannot use {cert} with {key} ({reason or error}): are both in PEM?") from None
    return Certificate(context, fingerprint_of(der))


def own_certificate(folder: Path, hosts: Iterable[str]) -> Certificate:
    """Reads the self-signed certificate in `folder`, or makes one. Only one process at a time may call it. Raises
    UserError."""
    cert, key = folder / _CERT, folder / _KEY
    if not (cert.exists() and key.exists()):
        _make(private_folder(folder), cert, key, hosts)
    return read_certificate(cert, key)


def _make(folder: Path, cert: Path, key: Path, hosts: Iterable[str]) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise UserError(
            "there is no command openssl, which makes certificates: install it, or give --tls-cert and --tls-key"
        )
    names = []
    for host in hosts:
        if _ADDRESS.fullmatch(host):
            names.append(f"IP:{host}")
        elif _HOST.fullmatch(host):  # other characters may have a meaning in openssl's list
            names.append(f"DNS:{host}")
    try:
        with tempfile.TemporaryDirectory(prefix=".tls-", dir=folder) as name:
            new = Path(name)
            ended = subprocess.run(
                [
                    program,
                    *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                    *("-keyout", str(new / _KEY), "-out", str(new / _CERT), "-days", "3650"),
                    *("-subj", "/CN=tpiedge", "-addext", f"subjectAltName={','.join(names)}"),
                    *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
                    *("-addext", "extendedKeyUsage=serverAuth"),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=30.0,
                check=False,
            )
            if ended.returncode == 0:
                # The key first: without the certificate, both are made anew.
                (new / _KEY).chmod(0o600)
                (new / _KEY).replace(key)
                (new / _CERT).replace(cert)
                return
    except subprocess.TimeoutExpired:
        raise UserError("openssl made no certificate within 30 s: try again") from None
    except OSError as error:
        raise UserError(f"cannot make a certificate in {folder}: {error.strerror}") from None
    said = sanitised_line(ended.stderr.strip().rpartition("\n")[2], 200)
    raise UserError(f"openssl made no certificate ({said}): give --tls-cert and --tls-key")
