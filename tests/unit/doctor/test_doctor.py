import http.server
import socket
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tpiedge.cli.doctor import doctor
from tpiedge.doctor import computer, network
from tpiedge.host.addresses import Address
from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.units import GIB, MIB

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
ERROR = "Traceback\nModuleNotFoundError: no torch\n"


def result_of(found):
    """Every finding that is not fine says what to do."""
    assert bool(found.advice) == (found.result not in ("ok", "skip"))
    return found.result


def disk(free, bytes_per_s=None):
    return computer.disk_finding(Path("/c"), free, bytes_per_s and DiskSpeed(bytes_per_s, True))


def processor(architecture, *features):
    return computer.features_finding(architecture, frozenset(features))


def kernels(isa, switch=""):
    return computer.arithmetic_findings(0, f'{{"torch": "2.9", "isa": {isa}}}', "", switch)[1]


@pytest.mark.parametrize(
    ("finding", "result", "words"),
    [
        (computer.memory_finding(200 * MIB, 16 * GIB, None), "fail", ""),
        (computer.memory_finding(900 * MIB, 16 * GIB, None), "warn", ""),
        (computer.memory_finding(2 * GIB, 16 * GIB, 2 * GIB), "ok", "a limit on this process"),
        (computer.address_space_finding(None), "ok", ""),
        (computer.address_space_finding(GIB), "fail", ""),
        (computer.address_space_finding(64 * GIB), "warn", ""),
        (computer.swap_finding(0, 0), "ok", ""),
        (computer.swap_finding(GIB, 0), "ok", ""),
        (computer.swap_finding(GIB, GIB - 1), "warn", ""),
        (disk(MIB), "fail", ""),
        (disk(GIB, 1e9), "warn", ""),
        (disk(99 * GIB, 20e6), "warn", ""),
        (disk(99 * GIB, 1e9), "ok", ""),
        (processor("x86_64", "avx2", "fma", "avx512f"), "ok", ""),
        (processor("x86_64", "sse4_2", "avx"), "warn", ""),
        (processor("aarch64", "asimd"), "ok", ""),
        (computer.check_clock(datetime(1970, 1, 1, tzinfo=UTC))[0], "fail", ""),
        (computer.check_clock(NOW)[0], "ok", "2026-05-01 12:00 UTC; only a master's is compared"),
        (kernels('"avx2"'), "ok", "avx2"),
        (kernels("null"), "warn", "no q8 and q4, and f32 and bf16 are slower"),
        (kernels("null", "0"), "warn", "switched off"),
        (computer.arithmetic_findings(1, "", ERROR, "")[0], "fail", "ModuleNotFoundError: no torch"),
        (computer.arithmetic_findings(-4, "", "", "")[0], "fail", "SIGILL"),
        (network.firewall_finding("# c\nENABLED=yes\n", False, None), "warn", "ufw"),
        (network.firewall_finding("ENABLED=no\n", False, ""), "ok", "none active"),
        (network.firewall_finding(None, True, None), "warn", "firewalld"),
        (network.firewall_finding(None, False, "hook input; policy drop;"), "warn", "nftables"),
        (network.firewall_finding(None, False, "hook output; policy drop;"), "ok", "none active"),
        (network.firewall_finding(None, False, None), "ok", "only root"),
        (network.address_findings("pi", ["127.0.0.1", "10.0.0.7", "fe80::1"], [])[0], "ok", "10.0.0.7"),
        (network.address_findings("pi", ["127.0.0.1"], [])[0], "warn", ""),
        (network.address_findings("pi", [], ["127.0.1.1"])[1], "ok", "pi is 127.0.1.1"),
        (network.address_findings("pi", [], [])[1], "warn", ""),
        (network.packets_finding(True), "ok", ""),
        (network.packets_finding(False), "fail", "MTU"),
        (network.packets_finding(None), "skip", ""),
    ],
)  # fmt: skip
def test_measurements_are_graded_as_findings(finding, result, words):
    assert result_of(finding) == result
    assert words in finding.found


@pytest.mark.parametrize(
    ("date", "result", "found"),
    [
        ("Fri, 01 May 2026 12:00:20 GMT", "ok", "agrees with HTTP at pi:8080"),
        ("Fri, 01 May 2026 11:30:00 GMT", "warn", "differs by 30 min 0 s from HTTP at pi:8080"),
        (None, "skip", "not compared"),
    ],
)
@pytest.mark.fault("P13", "`tpiedge doctor` tells of clocks that differ")
def test_clock_skew_to_the_master_is_reported(date, result, found):
    skew = network.skew_finding(date, NOW, "pi:8080")
    assert result_of(skew) == result
    assert found in skew.found


@pytest.mark.fault("P11", "`tpiedge doctor` tells of an unusual MTU")
def test_unusual_mtu_is_reported():
    assert result_of(network.mtu_finding({"lo": 65536, "eth0": 1500})) == "ok"
    tunnel = network.mtu_finding({"eth0": 1500, "wg0": 1200, "odd": 0})
    assert (result_of(tunnel), tunnel.found) == ("warn", "wg0 1200")


@pytest.mark.parametrize(
    ("who", "result"),
    [("another tpiedge master", "ok"), ("another tpiedge worker", "warn"), ("nginx", "warn")],
)
def test_ports_held_by_a_master_are_ok(monkeypatch, who, result):
    monkeypatch.setattr(network, "port_state", lambda _: "in use")
    monkeypatch.setattr(network, "holder", lambda _: f"{who}, pid 7")
    (found,) = network.check_ports({7070: "control"})
    assert result_of(found) == result
    assert (f"{who}, pid 7" in found.advice) == (result == "warn")


def test_master_reachability_is_checked():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())
        control, *others = network.check_reach(address)
        assert control.result == "ok"
        assert [item.result for item in others] == ["ok", "fail", "warn"]  # tensors' opens as it is needed
        assert f"is port {address.port} that of its --listen?" in others[1].advice
        assert result_of(*network.check_large_packets(address)) == "ok"
    (closed,) = network.check_reach(address)
    assert (result_of(closed), closed.found) == ("fail", "refused")
    assert result_of(*network.check_large_packets(address)) == "skip"
    (found,) = network.check_reach(Address("no.such.host.invalid", 7070))
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
        (found,) = network.check_master_clock("127.0.0.1", server.server_port)
        thread.join()
    assert (found.result, found.found) == ("ok", f"agrees with HTTP at 127.0.0.1:{server.server_port}")
    assert network.check_master_clock("127.0.0.1", server.server_port)[0].result == "skip"


def test_disk_check_leaves_no_files(tmp_path):
    (found,) = computer.check_disk(tmp_path / "not" / "there", 8 * MIB)
    assert "/s" in found.found
    assert str(tmp_path) in found.found
    assert list(tmp_path.iterdir()) == []


def test_hanging_and_failing_checks_become_warnings():
    release = threading.Event()

    def hangs():
        release.wait(20)
        return [computer.ok("late", "")]

    def breaks():
        raise OSError("no such device")

    two = [computer.ok("a", "1"), computer.ok("a", "2")]
    found = computer.examine({"a": lambda: two, "b": hangs, "c": breaks}, 0.2)
    release.set()
    results = [(item.check, item.result) for item in found]
    assert results == [("a", "ok"), ("a", "ok"), ("b", "warn"), ("c", "warn")]
    assert found[2].found == "no answer within 0.2 s"
    assert "OSError: no such device" in found[3].found


def test_doctor_says_on_a_terminal_how_long_it_checks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(computer, "examine", lambda _checks, _limit_s: [computer.ok("disk", "fast")])
    for terminal, said in ((False, ""), (True, "checking, for at most 9 s ...\n")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=terminal: shown)
        doctor.main([], standalone_mode=False)
        assert capsys.readouterr() == ("ok    disk  fast\n", said)
