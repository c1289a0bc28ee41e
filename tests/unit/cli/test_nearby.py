"""Which of the masters that announce themselves a worker joins, and what it says where there is none."""

import sys

import pytest

from tpiedge.cli import nearby
from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import Address
from tpiedge.joining import mdns
from tpiedge.joining.announced import AnnouncedMaster
from tpiedge.wire.messages import PROTOCOL

DESK = AnnouncedMaster("desk", Address("192.168.1.10", 7070), PROTOCOL)
PI = AnnouncedMaster("pi", Address("192.168.1.11", 7070), PROTOCOL + 1)


@pytest.fixture
def found(monkeypatch):
    """What each look finds, the first ones first; the last one again and again."""
    looks = []
    monkeypatch.setattr(mdns, "masters_nearby", lambda _limit_s: looks.pop(0) if len(looks) > 1 else looks[0])
    return looks


@pytest.fixture
def said():
    return []


@pytest.fixture
def terminal(monkeypatch):
    """There is somebody to ask, who answers so."""

    def answering(*answers):
        waiting = list(answers)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _text: waiting.pop(0))

    return answering


def test_the_only_one_is_joined(found, said):
    found.append((DESK,))
    assert nearby.master_nearby(0.0, said.append) == DESK.address
    assert said[-1] == "joining desk at 192.168.1.10:7070"


def test_of_several_none_is_joined_where_there_is_nobody_to_ask(found, said):
    found.append((DESK, PI))
    with pytest.raises(UserError, match="2 masters announce themselves: say which") as raised:
        nearby.master_nearby(0.0, said.append)
    assert "desk at 192.168.1.10:7070; pi at 192.168.1.11:7070, which is of another version" in str(
        raised.value
    )
    assert "\n" not in str(raised.value)


def test_a_user_is_asked_which(found, said, terminal, capsys):
    found.append((DESK, PI))
    terminal("3", "x", "2")
    assert nearby.master_nearby(0.0, said.append) == PI.address
    asked = capsys.readouterr()
    assert asked.out == ""
    assert "1  desk at 192.168.1.10:7070\n2  pi at 192.168.1.11:7070" in asked.err


def test_a_user_is_not_asked_about_the_only_one(found, said, terminal):
    found.append((DESK,))
    terminal()
    assert nearby.master_nearby(0.0, said.append) == DESK.address


def test_it_looks_as_long_as_it_shall_wait(found, said):
    found += [(), (), (DESK,)]
    assert nearby.master_nearby(60.0, said.append) == DESK.address


def test_nobody_there(found, said):
    found.append(())
    with pytest.raises(PeerError, match="no master announced itself within 5 s: start one with --announce"):
        nearby.master_nearby(0.0, said.append)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "pi.local"])
def test_a_master_that_nobody_would_find_is_refused(host):
    with pytest.raises(UserError, match="--announce: no other machine hears of"):
        nearby.check_announcing(Address(host, 7070))


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    for asked in (
        lambda: nearby.check_announcing(DESK.address),
        lambda: nearby.master_nearby(0.0, said.append),
    ):
        with pytest.raises(UserError, match=r"needs zeroconf: pip install 'tpiedge\[mdns\]'"):
            asked()
