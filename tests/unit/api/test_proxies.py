import pytest
from starlette.datastructures import Headers

from tpiedge.api.guard import client_address, proxy_networks
from tpiedge.errors import UserError

NAMED = ["127.0.0.1", "10.1.0.0/16", "2001:db8::/32"]
XFF, FORWARDED = "x-forwarded-for", "forwarded"


def address(host: str, *headers: tuple[str, str], named: list[str] | None = None) -> str | None:
    raw = Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in headers])
    return client_address(raw, host, proxy_networks(NAMED if named is None else named))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.168.1.5", "192.168.1.5"),
        ("::ffff:192.168.1.5", "192.168.1.5"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("2001:DB9:0::1", "2001:db9::1"),
        ("", None),
    ],
)
def test_client_address_without_a_proxy_is_the_peer_address(host: str, expected: str | None) -> None:
    assert address(host) == expected


@pytest.mark.parametrize(
    "header", [(XFF, "9.9.9.9"), (FORWARDED, "for=9.9.9.9"), ("x-real-ip", "9.9.9.9"), ("via", "1.1 squid")]
)
@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.5"])
def test_client_behind_an_untrusted_proxy_is_unknown(host: str, header: tuple[str, str]) -> None:
    assert address(host, header, named=[]) is None
    assert address(host, ("x-forwarded-proto", "https"), named=[]) is None
    assert address(host, ("accept", "*/*"), named=[]) == host


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("9.9.9.9", "9.9.9.9"),
        ("9.9.9.9:4711", "9.9.9.9"),
        ("[2001:db9::17]:4711", "2001:db9::17"),
        ("2001:DB9::17", "2001:db9::17"),
        ("::ffff:9.9.9.9", "9.9.9.9"),
        ("8.8.8.8, 9.9.9.9", "9.9.9.9"),  # the client wrote the first one
        ("8.8.8.8,9.9.9.9 , 10.1.2.3,127.0.0.1", "9.9.9.9"),  # two more of the named
        ("10.1.2.3", "10.1.2.3"),  # a named one asks for itself
        ("10.1.2.4, 10.1.2.3", "10.1.2.3"),  # and cannot say that it is another
        *((value, None) for value in ("9.9.9.9, unknown", "9.9.9.9, unknown, 10.1.2.3", "9.9.9.9,", "")),
        *((value, None) for value in ("9.9.9.9.9", "9.9.9.9:port")),
    ],
)
def test_client_is_the_last_forwarded_address_not_of_a_trusted_proxy(
    value: str, expected: str | None
) -> None:
    assert address("127.0.0.1", (XFF, value)) == expected
    assert address("::ffff:127.0.0.1", (XFF, value)) == expected


def test_repeated_forwarded_for_headers_are_joined() -> None:
    assert address("10.1.0.1", (XFF, "8.8.8.8"), ("accept", "*/*"), (XFF, "9.9.9.9")) == "9.9.9.9"


def test_client_is_unknown_without_a_trusted_forwarded_for_header() -> None:
    assert address("127.0.0.1") is None
    assert address("127.0.0.1", ("x-real-ip", "9.9.9.9")) is None
    assert address("127.0.0.1", (XFF, "9.9.9.9"), (FORWARDED, "for=9.9.9.9")) is None
    assert address("10.2.0.1", (XFF, "9.9.9.9")) is None
    assert address("2001:db9::1", (XFF, "9.9.9.9")) is None
    assert address("2001:db8:5::1", (XFF, "9.9.9.9")) == "9.9.9.9"


@pytest.mark.parametrize("named", ["", "pi.local", "10.0.0.0/33", "10.0.0", "*", "10.0.0.1:80", "9" * 5000])
def test_invalid_trusted_proxy_is_refused(named: str) -> None:
    with pytest.raises(UserError, match="--trusted-proxy") as raised:
        proxy_networks([named])
    assert len(str(raised.value)) < 250


def test_trusted_network_may_have_host_bits_set() -> None:
    assert address("10.9.9.9", (XFF, "9.9.9.9"), named=[" 10.0.0.1/8 "]) == "9.9.9.9"
