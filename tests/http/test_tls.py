import contextlib
import shutil
import socket
import ssl
import time

import httpx
import openai
import pytest
from click.testing import CliRunner

from tests.http.conftest import SECRET, answers, wait_until
from tests.http.test_connections import answer_to
from tpiedge.api.connection import PIECE_BYTES
from tpiedge.api.limits import Limits
from tpiedge.cli.chat_client import chat
from tpiedge.cli.master_parts import only_master
from tpiedge.cli.nodes import nodes
from tpiedge.errors import UserError
from tpiedge.host.certificate import own_certificate
from tpiedge.host.private_file import replace_private
from tpiedge.units import MIB

LIMIT_S = 20.0

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="software: openssl is not on this computer"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def certificate(folder):
    return own_certificate(folder, ("localhost", "127.0.0.1"))


@pytest.fixture
def trusting(folder, certificate):
    return ssl.create_default_context(cafile=folder / "tls-cert.pem")


@pytest.fixture
def secure(serve, certificate):
    return lambda **options: serve(tls=certificate.context, **options)


def test_openai_streams_over_tls(secure, service, trusting):
    text = answers(service, "Hello there")
    server = secure(keys=["k"])
    assert server.url.startswith("https://127.0.0.1:")
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="k",
        max_retries=0,
        timeout=LIMIT_S,
        http_client=httpx.Client(verify=trusting),
    ) as client:
        stream = client.completions.create(model="babbler", prompt="hi", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == text


def invoke(command, *arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout


def test_local_master_certificate_is_trusted_by_stored_fingerprint(secure, service, certificate, tmp_path):
    text = answers(service, "Hello there")
    note = {"url": secure().url, "secret": SECRET, "tls_sha256": certificate.fingerprint}
    replace_private(tmp_path / "master" / "admin.json", note)
    with only_master(tmp_path / "master"):
        assert "attic" in invoke(nodes, "--state", tmp_path)
        assert invoke(chat, "--state", tmp_path, "--prompt", "x") == text + "\n"


@pytest.mark.parametrize(
    ("trust", "says"),
    [
        ((), "is not trusted .*--tls-fingerprint"),
        (("--tls-fingerprint", "ab" * 32), "is not trusted .its SHA-256 fingerprint is [0-9a-f]{64}"),
        (("--tls-fingerprint", "abc"), "64 hex digits"),
        (("--tls-ca", "missing"), "cannot take certificates from missing"),
        (("--tls-ca", __file__), "is it in PEM"),
        (("--tls-ca", "x", "--tls-fingerprint", "y"), "give either"),
    ],
)
def test_untrusted_certificate_is_refused_before_sending_the_key(secure, service, trust, says):
    server = secure(keys=["k"])
    with pytest.raises(UserError, match=says) as raised:
        invoke(chat, "--url", server.url, "--prompt", "x", "--api-key", "k", *trust)
    assert "\n" not in str(raised.value)
    assert service.generations.empty()


@pytest.mark.fault("H2", "TLS: however much has come, an iteration of the event loop parses one piece")
def test_event_loop_parses_one_tls_piece_at_a_time(secure, service, trusting, pieces):
    """TLS itself gives all bytes that have come at once."""
    answers(service, "Hello")
    body = b'{"model": "babbler", "prompt": "Once"}'.ljust(3 * MIB)
    with httpx.Client(base_url=secure().url, verify=trusting, timeout=LIMIT_S) as http:
        headers = {"Content-Type": "application/json"}
        assert http.post("/v1/completions", content=body, headers=headers).status_code == 200
    assert max(pieces) == PIECE_BYTES
    assert sum(pieces) > len(body)


@pytest.mark.fault("H1", "TLS: closed at their deadlines, before, in and after the handshake")
def test_a_handshake_that_does_not_end_has_a_deadline(secure, trusting):
    """A byte that comes does not renew it."""
    server = secure(limits=Limits(headers_s=5.0))
    end = time.monotonic() + LIMIT_S
    with contextlib.ExitStack() as stack:
        silent, begun, shaken = [
            stack.enter_context(socket.create_connection(server.address, LIMIT_S)) for _ in range(3)
        ]
        begun.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        begun.settimeout(0.1)
        with trusting.wrap_socket(shaken, server_hostname="localhost") as secured:
            byte = None
            while byte != b"" and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    byte = answer_to(begun, b"\0")
            assert answer_to(silent, b"") == b""
            with contextlib.suppress(ssl.SSLEOFError):
                assert secured.recv(1) == b""
    assert time.monotonic() < end


@pytest.mark.fault("H8", "TLS: cut where no place is left, before the handshake")
def test_connections_are_limited_before_the_tls_handshake(secure, trusting):
    server = secure(limits=Limits(connections=16, headers_s=60))
    with contextlib.ExitStack() as stack:
        for _ in range(8):  # half of them, all that one address may have
            stack.enter_context(socket.create_connection(server.address, LIMIT_S))
        with socket.create_connection(server.address, LIMIT_S) as late:
            assert answer_to(late, b"") == b""
    # Those that were taken are free again.
    with httpx.Client(verify=trusting, base_url=server.url, timeout=LIMIT_S) as http:

        def healthy():
            with contextlib.suppress(httpx.TransportError):
                return http.get("/health").status_code == 200

        wait_until(healthy)
