import hashlib
import os
import shutil
import ssl

import pytest

from tpiedge.errors import UserError
from tpiedge.host.certificate import own_certificate, read_certificate

HOSTS = ("localhost", "127.0.0.1", "::1", "pi.local", "a,DNS:evil.example", "-x", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("software: openssl is not on this computer")
    folder = tmp_path_factory.mktemp("state")
    return folder, own_certificate(folder, HOSTS)


def test_own_certificate_is_made_once_with_a_private_key_file(made):
    folder, certificate = made
    cert, key = folder / "tls-cert.pem", folder / "tls-key.pem"
    assert sorted(os.listdir(folder)) == [cert.name, key.name]
    assert key.stat().st_mode & 0o777 == 0o600
    der = ssl.PEM_cert_to_DER_cert(cert.read_text())
    assert certificate.fingerprint == hashlib.sha256(der).hexdigest()
    assert certificate.shown.replace(":", "").lower() == certificate.fingerprint
    assert b"pi.local" in der
    assert b"evil" not in der
    assert own_certificate(folder, ("other",)).fingerprint == certificate.fingerprint


def test_missing_openssl_error_suggests_tls_cert(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no command openssl.*--tls-cert"):
        own_certificate(tmp_path, ("localhost",))


def bad(folder, what):
    cert, key = folder / "tls-cert.pem", folder / "tls-key.pem"
    match what:
        case "no certificate":
            cert.unlink()
        case "no key":
            key.unlink()
        case "an open key":
            key.chmod(0o644)
        case "another key":
            own_certificate(folder / "other", ("localhost",))
            shutil.copy(folder / "other" / key.name, key)
        case "garbage for a certificate":
            cert.write_bytes(b"\xff\x00")
        case "a cut certificate":
            cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        case "an encrypted key":
            key.write_text(
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
            )
    return cert, key


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no certificate", "cannot read the certificate .*No such file"),
        ("no key", "there is no key"),
        ("an open key", "chmod 600"),
        ("another key", "is not that of the certificate"),
        ("garbage for a certificate", "is no certificate in PEM"),
        ("a cut certificate", "TLS cannot use"),
        ("an encrypted key", "is encrypted: decrypt it"),
    ],
)
def test_unusable_tls_files_give_a_one_line_error(made, tmp_path, what, says):
    folder = tmp_path / "files"
    shutil.copytree(made[0], folder)
    with pytest.raises(UserError, match=says) as raised:
        read_certificate(*bad(folder, what))
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
