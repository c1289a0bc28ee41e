"""`tpiedge testbed` from up to down: what it shows, what runs in it, what it refuses, what it leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.process.command import gone, run_command, wait_for
from tests.process.lab.testbed.beds import bed_name, left_of, removed, why_no_testbed
from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Link, load_scenario
from tpiedge.lab.testbed.isolation import inside
from tpiedge.lab.testbed.running import attach, open_testbed, status_of
from tpiedge.lab.testbed.state import folder_of, read_state
from tpiedge.lab.testbed.testbed import down, known_names, namespaces_of, switches, up

REASON = why_no_testbed()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def run(*arguments: object, status: int = 0, **options):
    ended = run_command("testbed", *arguments, **options)
    assert ended.status == status, ended.err
    return ended


def record_of(name: str) -> dict:
    return status_of(state(name))


@pytest.mark.thin
def test_testbed_goes_up_reports_status_and_goes_down(bed: str) -> None:
    before = os.times()
    ended = run("up", "pair", "--name", bed)
    after = os.times()
    # It is quick: of processor time, which other work on this computer takes less from than from the clock.
    assert sum(after[2:4]) - sum(before[2:4]) < 3
    assert ended.out == ""
    assert f"{bed} is up" in ended.err
    record = json.loads(run("status", bed, "--json").out)
    assert (record["state"], len(record["switch_pids"])) == ("up", 1)
    assert [(device["name"], device["address"], device["there"]) for device in record["devices"]] == [
        ("device1", "10.77.0.1", True),
        ("device2", "10.77.0.2", True),
    ]
    assert all(pair["latency_s"] == 0.001 for pair in record["pairs"])
    assert folder_of(bed).stat().st_mode & 0o777 == 0o700
    assert bed in known_names()
    listed = json.loads(run("ls", "--json").out)
    assert "paper-8" in [item["name"] for item in listed["shipped"]]
    assert bed in [item["name"] for item in listed["up"]]
    assert bed in run("status").out
    assert "is up already" in run("up", "pair", "--name", bed, status=2).err
    assert record_of(bed)["state"] == "up"
    assert f"{bed} is down" in run("down", bed).err
    assert left_of(bed) == []
    assert f"there is no testbed {bed}" in run("down", bed).err
    assert "is not up" in run("status", bed, status=2).err


def test_exec_runs_the_command_inside_the_device(bed: str) -> None:
    up(load_scenario("pair", bed), print)
    show = "cat; readlink /proc/self/ns/net; cat /proc/self/cgroup; echo bad >&2; exit 7"
    ended = run("exec", bed, "device2", "--", "sh", "-c", show, stdin="hello\n", status=7)
    lines = ended.out.splitlines()
    assert lines[0] == "hello"
    assert lines[1] != os.readlink("/proc/self/ns/net")
    assert f"tpiedge.{bed}.device2" in ended.out
    assert ended.err == "bad\n"
    assert "no such command: nope" in run("exec", bed, "device1", "--", "nope", status=127).err
    assert "cannot run /" in run("exec", bed, "device1", "--", "/", status=126).err
    assert "it has device1, device2" in run("exec", bed, "phone", "--", "true", status=2).err


def test_devices_reach_each_other_and_nothing_else(bed: str) -> None:
    up(load_scenario("pair", bed), print)
    serve = "import socket; s = socket.create_server(('', 5000)); c, a = s.accept(); c.sendall(a[0].encode())"
    fetch = "import socket; print(socket.create_connection(('10.77.0.2', 5000), 10).recv(99).decode())"
    with subprocess.Popen(
        [*attach(bed).device("device2").enter_command, sys.executable, "-c", serve]
    ) as server:
        wait_for(lambda: listening(namespaces_of(state(bed))["device2"], 5000), 10)
        assert run("exec", bed, "device1", "--", sys.executable, "-c", fetch).out == "10.77.0.1\n"
        assert server.wait(10) == 0
    leave = "import socket; socket.create_connection(('192.0.2.1', 9), 5)"
    assert "unreachable" in run("exec", bed, "device1", "--", sys.executable, "-c", leave, status=1).err
    links = {(link["member"], link["way"]): link["counters"] for link in record_of(bed)["links"]}
    assert all(links[pair]["packets"] > 2 for pair in links)


def state(bed: str):
    found = read_state(bed)
    assert found is not None
    return found


def listening(namespace: Path, port: int) -> bool:
    with inside(namespace):
        return f":{port:04X} 00000000:0000 0A" in Path("/proc/thread-self/net/tcp").read_text()


def test_two_testbeds_do_not_interfere(bed: str) -> None:
    """The same addresses and names, other namespaces; what is done to one is not done to the other."""
    with removed(bed_name()) as other:
        with open_testbed("pair", name=bed) as first, open_testbed("pair", name=other) as second:
            assert first.devices[0].address == second.devices[0].address
            with first.inside("device1"):
                one = socket.create_server((first.devices[0].address, 7000))
            with one, second.inside("device1"):
                socket.create_server((second.devices[0].address, 7000)).close()
            first.set_all({"device1": (Link(0.1), Link(0.1))})
            assert first.expected("device1", "device2").latency_s == pytest.approx(0.1005)
            assert second.expected("device1", "device2").latency_s == pytest.approx(0.001)
            down(bed)
            assert left_of(bed) == []
            assert record_of(other)["state"] == "up"
        assert left_of(other) == []


def test_down_ends_processes_that_still_run(bed: str) -> None:
    """Politely first; what does not listen, is stopped or has left its control group goes as well."""
    up(load_scenario("pair", bed), print)
    polite = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    wait = "print('ready', flush=True)\ntime.sleep(60)"
    prefix = attach(bed).device("device1").enter_command
    processes = [
        subprocess.Popen([*words, sys.executable, "-c", how + wait], stdout=subprocess.PIPE)
        for words in (prefix, (*prefix[:5], "--"))
        for how in (polite, deaf)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    processes[2].send_signal(signal.SIGSTOP)
    down(bed)
    assert [process.wait(5) for process in processes] == [3, -9, 3, -9]
    for process in processes:
        process.stdout.close()


def test_link_settings_change_while_the_testbed_runs(bed: str) -> None:
    up(load_scenario("pair", bed), print)
    run("link", bed, "device1", "--latency", "3ms", "--loss", "1%")
    run("link", bed, "device2", "--rate", "10 Mbit/s", "--down")
    links = {(link["member"], link["way"]): link for link in record_of(bed)["links"]}
    assert [links["device1", way]["latency_s"] for way in ("up", "down")] == [0.003, 0.003]
    assert [links["device1", way]["loss"] for way in ("up", "down")] == [0.01, 0.01]
    assert links["device2", "up"]["bytes_per_s"] == 37_500_000
    assert links["device2", "down"]["bytes_per_s"] == 1_250_000
    assert attach(bed).expected("device1", "device2").bytes_per_s == 1_250_000
    run("link", bed, "device2", "--rate", "none")
    links = {(link["member"], link["way"]): link for link in record_of(bed)["links"]}
    assert [links["device2", way]["bytes_per_s"] for way in ("up", "down")] == [None, None]
    assert "has no link in the testbed" in run("link", bed, "router", "--loss", "1%", status=2).err


def test_killed_switch_is_reported_and_taken_down(bed: str) -> None:
    up(load_scenario("pair", bed), print)
    (pid,) = switches(bed)
    victim = psutil.Process(pid)
    victim.kill()
    wait_for(lambda: gone(victim), 5)
    assert record_of(bed)["state"] == "broken"
    assert "does not answer" in run("link", bed, "device1", "--latency", "1ms", status=4).err
    with pytest.raises(UserError, match=r"the switch of the testbed .* has ended"), open_testbed(bed):
        pytest.fail("it does not work any more")
    down(bed)
    assert left_of(bed) == []


def test_testbed_commands_say_that_they_need_root(bed: str) -> None:
    up(load_scenario("pair", bed), print)
    for arguments in (("up", "pair"), ("status", bed), ("ls",)):
        status, err = as_nobody("testbed", *arguments)
        assert status == (0 if arguments == ("ls",) else 2), err
        assert err == ("" if arguments == ("ls",) else f"tpiedge: {NEEDS_ROOT}\n")
    # The tests' own folders are closed to others.
    own = ("--cache", f"/tmp/{bed}", "--state", f"/tmp/{bed}")
    status, err = as_nobody("run", "--model", "demo", *own, "--raw", "--prompt", "x", "--testbed", bed)
    assert (status, err) == (2, f"tpiedge: {NEEDS_ROOT}\n")


NEEDS_ROOT = "a testbed needs root, for namespaces and control groups: run it with sudo"


def as_nobody(*arguments: str) -> tuple[int, str]:
    """Status and errors. The id changes once all is imported: the sources may be closed to others."""
    code = (
        "import os, tpiedge.lab.testbed.running; from tpiedge.cli.main import cli, main; cli.load(); "
        "os.setgid(65534); os.setuid(65534); main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stderr
