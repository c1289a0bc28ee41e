import sys
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tpiedge.cli import nearby
from tpiedge.cli.master_parts import check_ports
from tpiedge.errors import PeerError, ResourceError, UserError
from tpiedge.host.addresses import Address
from tpiedge.joining import mdns
from tpiedge.joining.identity import cluster_name
from tpiedge.joining.mdns import AnnouncedMaster
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.codec import PROTOCOL

DESK = AnnouncedMaster("desk", Address("192.168.1.10", 7070), PROTOCOL)
HOME, SHED = CurveKeys.generate().public, CurveKeys.generate().public
PI = AnnouncedMaster("pi", Address("192.168.1.11", 7070), PROTOCOL + 1)
WAIT_S = 10.0


@pytest.fixture
def found(monkeypatch):
    looks = []
    monkeypatch.setattr(mdns, "masters_nearby", lambda _limit_s: looks.pop(0) if len(looks) > 1 else looks[0])
    return looks


@pytest.fixture
def there(monkeypatch):
    """Sets the masters: keys by address; "?" refuses everybody."""
    keys = {}

    def who(address, key):
        return (
            "the master" if keys.get(address) == key else "somebody" if keys.get(address) == "?" else "nobody"
        )

    monkeypatch.setattr(nearby, "who_is_at", who)
    return keys


@pytest.fixture
def said():
    return []


@pytest.fixture
def terminal(monkeypatch):
    def answering(*answers):
        waiting = list(answers)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _text: waiting.pop(0))

    return answering


def at(host):
    return Address(f"192.168.1.{host}", 7070)


def announces(name, host, key):
    return AnnouncedMaster(name, at(host), PROTOCOL, cluster_name(key))


@pytest.mark.parametrize(
    ("looks", "masters", "known", "typed", "joined", "words"),
    [
        ([(DESK,)], {}, {}, None, (DESK.address, None), "joining desk at 192.168.1.10:7070"),
        # The user is not asked about the only master, or while masters are looked for.
        ([(DESK,)], {}, {}, "", (DESK.address, None), ""),
        ([(), (), (DESK,)], {}, {}, None, (DESK.address, None), ""),
        # Of several known masters the one joined last comes first.
        ([()], {at(4): SHED, at(5): HOME}, {at(4): SHED, at(5): HOME}, None, (at(4), SHED), ""),
        # A known master is joined wherever it announces itself; one says that it is the known master, and is not.
        (
            [(DESK, announces("liar", 8, HOME), announces("desk", 9, HOME), PI)],
            {at(9): HOME, at(8): SHED},
            {at(5): HOME},
            None,
            (at(9), HOME),
            "joining desk at 192.168.1.9:7070, a known master",
        ),
        # A master without a free place refuses, too, and so may any program: a refusal counts where no master proves
        # to be there.
        ([()], {at(4): "?", at(5): HOME}, {at(4): HOME, at(5): HOME}, None, (at(5), HOME), ""),
        ([()], {at(4): "?", at(5): "?"}, {at(4): HOME, at(5): HOME}, None, (at(4), HOME), ""),
        # A person is asked about unknown masters, even about one; where a known master was, it has to prove its key.
        ([(DESK,)], {}, {at(5): HOME}, "1", (DESK.address, None), ""),
        ([(replace(DESK, address=at(5)),)], {}, {at(5): HOME}, "1", (at(5), HOME), ""),
    ],
)
def test_worker_joins_the_right_nearby_master(
    found, there, said, terminal, looks, masters, known, typed, joined, words
):
    found += looks
    there |= masters
    if typed is not None:
        terminal(*typed)
    assert nearby.master_nearby(60.0 if len(looks) > 1 else 0.0, known, said.append) == joined
    assert said[-1].endswith(words)


def test_several_nearby_masters_need_a_choice_by_the_user(found, said, monkeypatch, terminal, capsys):
    found.append((DESK, PI))
    with pytest.raises(UserError, match="2 masters found: choose one") as raised:
        nearby.master_nearby(0.0, {}, said.append)
    assert "pi at 192.168.1.11:7070, which is of another version" in str(raised.value)
    terminal("3", "x", "2")
    assert nearby.master_nearby(0.0, {}, said.append) == (PI.address, None)
    assert "1  desk at 192.168.1.10:7070\n2  pi at 192.168.1.11:7070" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("announced", "known", "words"),
    [
        ((), {}, "no master found within 5 s: start one with --announce"),
        *(
            (others, {at(5): HOME}, r"no known master answers \(192.168.1.5:7070")
            for others in ((), (DESK,), (DESK, PI))
        ),
    ],
)
def test_no_answering_master_is_an_error(found, there, said, announced, known, words):
    found.append(announced)
    with pytest.raises(PeerError, match=words) as raised:
        nearby.master_nearby(0.0, known, said.append)
    assert ("desk at 192.168.1.10:7070" in str(raised.value)) == bool(announced)


@pytest.fixture
def announce(monkeypatch):
    def begin(by, say):
        monkeypatch.setattr(mdns, "announced", by)
        return nearby.announcing(DESK.address, HOME, say)

    return begin


def test_announcing_does_not_block_and_ends_with_the_master(announce, said):
    let, ended, told = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def slowly(host, address, protocol, cluster):
        assert let.wait(WAIT_S)
        assert (address, protocol, cluster) == (DESK.address, PROTOCOL, cluster_name(HOME))
        yield "desk"
        ended.set()
        raise OSError("Network is unreachable")  # ignored after the end

    with announce(slowly, lambda line: (said.append(line), told.set())):
        assert said == []
        let.set()
        assert told.wait(WAIT_S)
    assert said == ["announced here as desk; on another machine:  tpiedge worker"]
    assert ended.is_set()


@pytest.mark.parametrize("thread", [True, False])
def test_failed_announcement_is_reported_and_not_fatal(announce, monkeypatch, said, thread):
    told = threading.Event()

    def refused(*_given):
        raise RuntimeError("others are here")

    if not thread:
        monkeypatch.setattr(threading.Thread, "start", refused)
    with announce(refused, lambda line: (said.append(line), told.set())):
        assert told.wait(WAIT_S)
    words = "this master is not announced: others are here; on another machine:  "
    assert said == [f"{words}tpiedge worker --connect 192.168.1.10:7070"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "pi.local"])
def test_announcing_an_unreachable_address_is_refused(host, monkeypatch):
    monkeypatch.setattr(nearby, "outgoing_host", lambda: "192.168.1.10")
    with pytest.raises(UserError, match="--announce: other machines cannot reach"):
        nearby.check_announcing(Address(host, 7070))


def test_service_that_starts_before_the_network_is_started_again(monkeypatch):
    monkeypatch.setattr(nearby, "outgoing_host", lambda: None)
    with pytest.raises(ResourceError, match=r"cannot reach 127\.0\.0\.1:7070"):
        nearby.check_announcing(Address("127.0.0.1", 7070))
    with pytest.raises(
        ResourceError, match=r"cannot listen on 192\.0\.2\.1:7070 for control: .* with --listen"
    ):
        check_ports(Address("192.0.2.1", 7070), Address("127.0.0.1", 8080))


def test_missing_zeroconf_error_says_what_to_install(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    for asked in (
        lambda: nearby.check_announcing(DESK.address),
        lambda: nearby.master_nearby(0.0, {}, said.append),
    ):
        with pytest.raises(UserError, match=r"needs zeroconf: pip install 'tpiedge\[mdns\]'"):
            asked()
