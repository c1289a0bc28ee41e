"""Checks this computer's network and the path to a master."""

import http.client
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from pathlib import Path

import psutil

from tpiedge.doctor.computer import Finding, fail, ok, skip, warn
from tpiedge.host.addresses import CONTROL_PORT, HTTP_PORT, PURPOSES, Address, holder, port_state
from tpiedge.transport.probe import passes_large_packets
from tpiedge.units import format_seconds

_RANGE = f"{CONTROL_PORT}-{CONTROL_PORT + max(PURPOSES)}/tcp"
PORTS = {**{CONTROL_PORT + offset: what for offset, what in PURPOSES.items()}, HTTP_PORT: "HTTP"}
_NO_SUCH_HOST = "the host is not known here"
_CONNECT_S = 2.0


def check_ports(ports: Mapping[int, str] = PORTS) -> Sequence[Finding]:
    return [_port(port, purpose) for port, purpose in ports.items()]


def _port(port: int, purpose: str) -> Finding:
    name, state = f"port {port}", port_state(port)
    if state == "free":
        return ok(name, f"free ({purpose})")
    if state == "in use":
        having = holder(port)
        if having.startswith("another tpiedge master,"):  # the doctor runs beside it
            return ok(name, f"in use ({purpose}), by the master that runs here")
        advice = f"{having} has it: a master here needs another --listen or --http"
        return warn(name, f"in use ({purpose})", advice)
    return fail(name, f"{state} ({purpose})", "choose another port with --listen or --http")


def check_firewall() -> Sequence[Finding]:
    ufw, rules = Path("/etc/ufw/ufw.conf"), None
    firewalld = any(process.info["name"] == "firewalld" for process in psutil.process_iter(["name"]))
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is not None:
        ended = subprocess.run(
            [program, "list", "ruleset"], capture_output=True, text=True, timeout=2, check=False
        )
        rules = ended.stdout if ended.returncode == 0 else None
    return [firewall_finding(ufw.read_text() if ufw.exists() else None, firewalld, rules)]


def firewall_finding(ufw: str | None, firewalld: bool, rules: str | None) -> Finding:
    """Warns of an active firewall. `ufw`: ufw.conf's text. `rules`: nftables' rules. None: absent or unreadable."""
    if ufw is not None and "ENABLED=yes" in ufw.splitlines():
        advice = f"on a master: ufw allow {_RANGE.replace('-', ':')}, and {HTTP_PORT}/tcp for HTTP"
        return warn("firewall", "ufw is active", advice)
    if firewalld:
        advice = f"on a master: firewall-cmd --permanent --add-port={_RANGE} --add-port={HTTP_PORT}/tcp, then --reload"
        return warn("firewall", "firewalld is active", advice)
    if rules is None:
        return ok("firewall", "no ufw or firewalld; only root can read nftables' rules")
    if "hook input" in rules and ("policy drop" in rules or "reject" in rules):
        advice = f"on a master: let {_RANGE} and {HTTP_PORT}/tcp in"
        return warn("firewall", "nftables refuses some connections", advice)
    return ok("firewall", "none active")


def check_addresses() -> Sequence[Finding]:
    addresses = [
        address.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for address in entries
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    name = socket.gethostname()
    try:
        resolved = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        resolved = set()
    return address_findings(name, addresses, resolved)


def address_findings(name: str, addresses: Iterable[str], resolved: Iterable[str]) -> Sequence[Finding]:
    parsed = {address: ip_address(address) for address in addresses}
    lan = sorted(
        address
        for address, ip in parsed.items()
        if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)
    )
    found = warn("addresses", "loopback only", "connect it to a network")
    if lan:
        found = ok("addresses", ", ".join(lan))
    targets = sorted(set(resolved))
    if targets:
        return [found, ok("host name", f"{name} is {', '.join(targets)}")]
    advice = f"add '127.0.1.1 {name}' to /etc/hosts; workers should connect by address"
    return [found, warn("host name", f"{name} does not resolve", advice)]


def check_mtu() -> Sequence[Finding]:
    return [mtu_finding({name: stats.mtu for name, stats in psutil.net_if_stats().items() if stats.isup})]


def mtu_finding(sizes: Mapping[str, int]) -> Finding:
    """Warns of small MTUs. `sizes`: bytes by active interface; 0 means unknown."""
    small = {name: mtu for name, mtu in sizes.items() if 0 < mtu < 1280}
    found = ", ".join(f"{name} {mtu}" for name, mtu in (small or sizes).items())
    if small:
        return warn("MTU", found, "large messages are cut into many packets: raise it to 1500 where possible")
    return ok("MTU", found or "no interface is up")


def check_reach(master: Address) -> Sequence[Finding]:
    """Connects to the master's ports. The tensor port may refuse, because it opens when needed."""
    control, name = _connect(master), f"master {master}"
    if isinstance(control, str):
        running = "is the master running, its --listen reachable from here, and its firewall open?"
        spelling = "check the spelling, or give its IP address"
        return [fail(name, control, spelling if control == _NO_SUCH_HOST else running)]
    words = f"connected in {format_seconds(control)}"
    slow = warn(name, words, "a token waits for this often: use a cable")
    others = enumerate(("tensors", "files", "pairing"), 1)
    return [
        slow if control > 0.02 else ok(name, words),
        *(_other(master, master.beside(step), purpose) for step, purpose in others),
    ]


def _other(control: Address, address: Address, purpose: str) -> Finding:
    name, result = f"master {address}", _connect(address)
    if isinstance(result, float):
        return ok(name, f"{purpose}, connected in {format_seconds(result)}")
    if result == "refused" and purpose == "tensors":
        return ok(name, f"{purpose}, nothing listens now, but the port can be reached")
    finding = fail if purpose == "files" else warn  # a worker with a token needs no pairing
    fix = f"let TCP {address.port} through the master's firewall"
    if result != "refused":
        return finding(name, f"{purpose}, {result}", fix)
    advice = f"is port {control.port} that of its --listen? or {fix}"
    return finding(name, f"{purpose}, nothing listens, though a master would", advice)


def _connect(address: Address) -> float | str:
    """Returns the seconds of the second connection, or why a connection failed."""
    try:
        for _ in range(2):  # the first connection may resolve names
            started = time.perf_counter()
            socket.create_connection((address.host, address.port), _CONNECT_S).close()
        return time.perf_counter() - started
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except ConnectionRefusedError:
        return "refused"
    except socket.gaierror:
        return _NO_SUCH_HOST
    except OSError as error:
        return error.strerror or str(error)


def check_large_packets(master: Address) -> Sequence[Finding]:
    return [packets_finding(passes_large_packets(master.host, master.port, _CONNECT_S))]


def packets_finding(passed: bool | None) -> Finding:
    name = "large packets"
    if passed is None:
        return skip(name, "not tested: no connection to the master, or the system does not tell")
    if passed:
        return ok(name, "they reach the master")
    found = "lost on the way to the master, small ones arrive: a smaller MTU is in between"
    advice = "give this computer's interface a smaller one (ip link set DEVICE mtu 1280), or fix the network in between"
    return fail(name, found, advice)


def check_master_clock(host: str, port: int = HTTP_PORT) -> Sequence[Finding]:
    connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    except (OSError, http.client.HTTPException):
        return [skip("master's clock", f"not compared: no HTTP at {host}:{port}")]
    finally:
        connection.close()
    return [skew_finding(date, datetime.now(UTC), f"{host}:{port}")]


def skew_finding(date: str | None, now: datetime, server: str) -> Finding:
    try:
        skew_s = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return skip("master's clock", f"not compared: the HTTP server at {server} sends no date")
    if abs(skew_s) <= 60.0:
        return ok("master's clock", f"agrees with HTTP at {server}")
    found = f"differs by {format_seconds(abs(skew_s))} from HTTP at {server}"
    advice = "set both clocks (timedatectl set-ntp true): tokens would expire wrongly"
    return warn("master's clock", found, advice)
