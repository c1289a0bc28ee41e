import pytest
import segno

from tpiedge.api.keys import AdminKey
from tpiedge.cli import master_lines
from tpiedge.cli.master_lines import (
    admin_lines,
    lan_address,
    next_lines,
    phone_lines,
    qr_lines,
    terminal_columns,
    url_for_others,
)
from tpiedge.host.addresses import Address

LAN = "192.168.1.10"
PAGE = f"http://{LAN}:8080/"
WIDE = 80
#: What a line of half blocks says of its upper and its lower squares: dark or not.
SQUARES = {" ": (1, 1), "\u2580": (0, 1), "\u2584": (1, 0), "\u2588": (0, 0)}


@pytest.mark.parametrize(
    ("http", "outgoing", "url"),
    [
        (Address("0.0.0.0", 8080), LAN, "http://192.168.1.10:8080"),
        (Address("::", 8080), LAN, "http://192.168.1.10:8080"),
        (Address("0.0.0.0", 8080), None, "http://127.0.0.1:8080"),  # no network
        (Address("127.0.0.1", 8080), LAN, "http://127.0.0.1:8080"),
    ],
)
def test_shown_url_is_reachable_from_elsewhere(monkeypatch, http: Address, outgoing: str | None, url: str):
    monkeypatch.setattr(master_lines, "outgoing_host", lambda: outgoing)
    assert url_for_others(http, f"http://{http}") == url
    assert f"http://{lan_address(http)}" == url


def test_page_url_and_qr_code_use_the_lan_address(monkeypatch):
    monkeypatch.setattr(master_lines, "outgoing_host", lambda: LAN)
    first, *picture = phone_lines(Address("0.0.0.0", 8080), "http://127.0.0.1:8080", False, WIDE)
    assert first == PAGE
    assert picture == qr_lines(PAGE, WIDE)
    rows = []
    for line in picture:
        text = line.removeprefix("\x1b[97;40m").removesuffix("\x1b[0m")
        rows += [list(row) for row in zip(*(SQUARES[one] for one in text), strict=True)]
    wanted = [list(row) for row in segno.make_qr(PAGE, error="l").matrix_iter(border=2)]
    assert rows == wanted + [[1] * len(wanted[0])] * (len(wanted) % 2)
    assert phone_lines(Address(LAN, 8080), PAGE.rstrip("/"), False, 28)[1:] == [], "too narrow"


@pytest.mark.parametrize(
    ("host", "needs_key", "chat", "phone"),
    [
        (
            *("localhost", False, "tpiedge chat"),
            ["tpiedge keys add phone", "then start this master again with:  --http 0.0.0.0:8080"],
        ),
        (
            *("0.0.0.0", True, "TPIEDGE_API_KEY=KEY tpiedge chat\n  with a KEY of:  tpiedge keys add NAME"),
            [PAGE, "it asks for a key; the QR code of this command brings one:  tpiedge keys add phone"],
        ),
        (*("0.0.0.0", False, "tpiedge chat"), [PAGE]),
    ],
)
def test_first_screen_has_three_blocks(monkeypatch, host: str, needs_key: bool, chat: str, phone: list[str]):
    monkeypatch.setattr(master_lines, "outgoing_host", lambda: LAN)
    url, joins = "http://127.0.0.1:8080", "tpiedge worker --connect 192.168.1.10:7070 --token tpi1_x"
    text = "\n".join(next_lines(Address(host, 8080), url, needs_key, [joins]))
    assert text.split("\n\n") == [
        f"\nChat here:\n  {chat}\n  or in a browser:  {url}/",
        "\n  ".join(["Chat on a phone:", *phone]),
        f"Compute on another machine, too:\n  {joins}\n",
    ]


@pytest.mark.parametrize(
    ("encoding", "term", "no_color", "columns"),
    [
        ("UTF-8", "xterm", "", WIDE),
        ("latin-1", "xterm", "", 0),
        ("utf-8", "dumb", "", 0),
        ("utf-8", "xterm", "1", 0),
    ],
)
def test_terminal_columns_are_zero_without_utf8_or_colours(monkeypatch, encoding, term, no_color, columns):
    assert terminal_columns() == 0, "it is none"
    shown = type("Shown", (), {"isatty": lambda _: True, "fileno": lambda _: 2, "encoding": encoding})
    monkeypatch.setattr(master_lines.sys, "stderr", shown())
    size = type("Size", (), {"columns": WIDE})
    monkeypatch.setattr(master_lines.os, "get_terminal_size", lambda _number: size)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert terminal_columns() == columns


def test_administrators_link_is_for_terminals_on_loopback_alone(monkeypatch):
    admin = AdminKey("secret")
    assert admin_lines("http://127.0.0.1:8080", admin) == [], "a log may be kept"
    monkeypatch.setattr(master_lines.sys, "stderr", type("Shown", (), {"isatty": lambda _: True})())
    (line,) = admin_lines("https://127.0.0.1:8080", admin)
    url, _, code = line.rpartition("/#admin=")
    assert url.endswith("https://127.0.0.1:8080")
    assert admin_lines("http://192.168.1.10:8080", admin) == []
    assert admin.key_for(code.encode()) == "secret"
