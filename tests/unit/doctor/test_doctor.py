"""The doctor's judgements, from numbers and texts; its checks run on this computer; a silent check is left behind."""

import http.server
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tpiedge.doctor import finding, machine, network, reach, software
from tpiedge.host.addresses import Address
from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.host.ports import Holder
from tpiedge.units import GIB, MIB

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
CHAIN = "type filter"


def result_of(found):
    """Every finding that is not fine says what to do."""
    assert bool(found.advice) == (found.verdict not in ("ok", "skip"))
    return found.verdict


def disk(free, bytes_per_s=None):
    return machine.judge_disk(Path("/c"), free, bytes_per_s and DiskSpeed(bytes_per_s, True))


def processor(architecture, *features):
    return machine.judge_features(architecture, frozenset(features))


@pytest.mark.parametrize(
    ("finding", "result", "words"),
    [
        (machine.judge_memory(200 * MIB, 16 * GIB, None), "fail", ""),
        (machine.judge_memory(900 * MIB, 16 * GIB, None), "warn", ""),
        (machine.judge_memory(8 * GIB, 16 * GIB, None), "ok", ""),
        (machine.judge_memory(2 * GIB, 16 * GIB, 2 * GIB), "ok", "a limit on this process"),
        (machine.judge_address_space(None), "ok", ""),
        (machine.judge_address_space(GIB), "fail", ""),
        (machine.judge_address_space(64 * GIB), "warn", ""),
        (machine.judge_swap(0, 0), "ok", ""),
        (machine.judge_swap(GIB, 0), "ok", ""),
        (machine.judge_swap(GIB, GIB - 1), "warn", ""),
        (disk(MIB), "fail", ""),
        (disk(GIB, 1e9), "warn", ""),
        (disk(99 * GIB, 20e6), "warn", ""),
        (disk(99 * GIB, 1e9), "ok", ""),
        (processor("x86_64", "avx2", "fma", "avx512f"), "ok", ""),
        (processor("x86_64", "sse4_2", "avx"), "warn", ""),
        (processor("x86_64"), "ok", ""),
        (processor("aarch64", "asimd"), "ok", ""),
        (machine.judge_clock(datetime(1970, 1, 1, tzinfo=UTC)), "fail", ""),
        (machine.judge_clock(NOW), "ok", "2026-05-01 12:00 UTC; only a master's is compared, with --connect"),
        (network.judge_firewall("# c\nENABLED=yes\n", False, None), "warn", "ufw"),
        (network.judge_firewall("ENABLED=no\n", False, ""), "ok", "none active"),
        (network.judge_firewall(None, True, None), "warn", "firewalld"),
        (network.judge_firewall(None, False, f"{CHAIN} hook input; policy drop;"), "warn", "nftables"),
        (network.judge_firewall(None, False, f"{CHAIN} hook output; policy drop;"), "ok", "none active"),
        (network.judge_firewall(None, False, None), "ok", "for root"),
        (reach.judge_packets(True), "ok", ""),
        (reach.judge_packets(False), "fail", "MTU"),
        (reach.judge_packets(None), "skip", ""),
    ],
)  # fmt: skip
def test_judgements(finding, result, words):
    assert result_of(finding) == result
    assert words in finding.found


@pytest.mark.parametrize(
    ("date", "result", "found"),
    [
        ("Fri, 01 May 2026 12:00:20 GMT", "ok", "agrees with HTTP at pi:8080"),
        ("Fri, 01 May 2026 11:30:00 GMT", "warn", "differs by 30 min 0 s from HTTP at pi:8080"),
        ("Fri, 01 May 2026 12:30:00 GMT", "warn", "differs by 30 min 0 s from HTTP at pi:8080"),
        ("yesterday", "skip", "not compared"),
        (None, "skip", "not compared"),
    ],
)
@pytest.mark.fault("P13", "`tpiedge doctor` tells of clocks that differ")
def test_the_clock_of_the_master(date, result, found):
    skew = reach.judge_skew(date, NOW, "pi:8080")
    assert result_of(skew) == result
    assert found in skew.found


def test_addresses():
    lan, name = network.judge_addresses("pi", ["127.0.0.1", "10.0.0.7", "fe80::1", "::1"], ["127.0.1.1"])
    assert (result_of(lan), lan.found) == ("ok", "10.0.0.7")
    assert (result_of(name), name.found) == ("ok", "pi is 127.0.1.1")
    assert [result_of(found) for found in network.judge_addresses("pi", ["127.0.0.1"], [])] == [
        "warn",
        "warn",
    ]


@pytest.mark.fault("P11", "`tpiedge doctor` tells of an unusual MTU")
def test_mtu():
    assert result_of(network.judge_mtu({"lo": 65536, "eth0": 1500})) == "ok"
    tunnel = network.judge_mtu({"eth0": 1500, "wg0": 1200, "odd": 0})
    assert (result_of(tunnel), tunnel.found) == ("warn", "wg0 1200")


def test_large_packets_to_who_listens_and_to_nobody():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())
        (found,) = reach.check_large_packets(address)
        assert result_of(found) == "ok"
    (found,) = reach.check_large_packets(address)
    assert result_of(found) == "skip"


def test_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (found,) = network.check_ports({port: "control"})
        assert (result_of(found), found.found) == ("warn", "in use (control)")
    (found,) = network.check_ports({port: "control"})
    assert (result_of(found), found.found) == ("ok", "free (control)")


@pytest.mark.parametrize(("verb", "result"), [("master", "ok"), ("worker", "warn"), ("", "warn")])
def test_a_running_master_has_its_ports_in_order(monkeypatch, verb, result):
    monkeypatch.setattr(network, "port_state", lambda _: "in use")
    monkeypatch.setattr(network, "holder", lambda _: Holder("who, pid 7", verb))
    (found,) = network.check_ports({7070: "control"})
    assert result_of(found) == result
    assert ("who, pid 7" in found.advice) == (result == "warn")


@pytest.mark.parametrize(
    ("status", "out", "wanted", "verdicts"),
    [
        (0, '{"torch": "2.9", "isa": "avx2"}', "", ["ok", "ok"]),
        (0, '{"torch": "2.9", "isa": null}', "", ["ok", "warn"]),
        (0, '{"torch": "2.9", "isa": null}', "0", ["ok", "warn"]),
        (1, "", "", ["fail"]),
        (-4, "", "", ["fail"]),
    ],
)
def test_arithmetic(status, out, wanted, verdicts):
    found = software.judge_arithmetic(status, out, "Traceback\nModuleNotFoundError: no torch\n", wanted)
    assert [result_of(item) for item in found] == verdicts
    if verdicts == ["ok", "warn"]:
        assert "no q8 and q4, and f32 and bf16 are slower" in found[1].found
        assert ("unset TPIEDGE_NATIVE" if wanted else "make setup") in found[1].advice
    if status > 0:
        assert found[0].found == "ModuleNotFoundError: no torch"
    if status < 0:
        assert "SIGILL" in found[0].found


def test_the_way_to_a_master():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        control, *others = reach.check_reach(Address("127.0.0.1", port))
        assert control.verdict == "ok"
        assert [item.verdict for item in others] == ["ok", "fail", "warn"]  # tensors' opens as it is needed
        assert f"is port {port} that of its --listen?" in others[1].advice
    (closed,) = reach.check_reach(Address("127.0.0.1", port))
    assert (result_of(closed), closed.found) == ("fail", "refused")


def test_a_name_that_is_no_host():
    (found,) = reach.check_reach(Address("no.such.host.invalid", 7070))
    assert (result_of(found), found.found) == ("fail", "the host is not known here")
    assert "spelling" in found.advice


def test_the_clock_is_read_from_an_http_answer():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        (found,) = reach.check_master_clock("127.0.0.1", server.server_port)
        thread.join()
    assert (found.verdict, found.found) == ("ok", f"agrees with HTTP at 127.0.0.1:{server.server_port}")
    (found,) = reach.check_master_clock("127.0.0.1", server.server_port)
    assert found.verdict == "skip"
    assert "not compared" in found.found


def test_the_disk_is_measured_and_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_FILE_BYTES", 8 * MIB)
    (found,) = machine.check_disk(tmp_path / "not" / "there")
    assert "/s" in found.found
    assert str(tmp_path) in found.found
    assert list(tmp_path.iterdir()) == []


def test_checks_on_this_computer():
    for check in (
        software.check_python, software.check_links, machine.check_processor, machine.check_memory,
        machine.check_clock, network.check_firewall, network.check_addresses, network.check_mtu,
    ):  # fmt: skip
        found = check()
        assert found
        assert [result_of(item) for item in found]


def test_findings_come_in_order_without_the_check_that_hangs():
    release = threading.Event()

    def hangs():
        release.wait(20)
        return [finding.ok("late", "")]

    def breaks():
        raise OSError("no such device")

    found = finding.examine(
        {"a": lambda: [finding.ok("a", "1"), finding.ok("a", "2")], "b": hangs, "c": breaks}, 0.2
    )
    release.set()
    assert [(item.check, item.verdict) for item in found] == [
        ("a", "ok"),
        ("a", "ok"),
        ("b", "warn"),
        ("c", "warn"),
    ]
    assert found[2].found == "no answer within 0.2 s"
    assert "OSError: no such device" in found[3].found
