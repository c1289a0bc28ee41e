"""Checks of this computer's network: ports, firewall, names, addresses, MTU."""

import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

import psutil

from tpiedge.doctor.finding import Finding, fail, ok, warn
from tpiedge.host.ports import holder, port_state

HTTP_PORT = 8080
PORTS = {7070: "control", 7071: "tensors", 7072: "files", 7073: "pairing", HTTP_PORT: "HTTP"}
_MIN_MTU = 1280
_UFW = Path("/etc/ufw/ufw.conf")


def check_ports(ports: Mapping[int, str] = PORTS) -> Sequence[Finding]:
    """Those that a master listens on."""
    return [_port(port, purpose) for port, purpose in ports.items()]


def _port(port: int, purpose: str) -> Finding:
    name, state = f"port {port}", port_state(port)
    if state == "free":
        return ok(name, f"free ({purpose})")
    if state == "in use":
        having = holder(port)
        if having.verb == "master":  # as when the doctor is asked beside it
            return ok(name, f"in use ({purpose}), by the master that runs here")
        advice = f"{having.words} has it: a master here needs another --listen or --http"
        return warn(name, f"in use ({purpose})", advice)
    return fail(name, f"{state} ({purpose})", "choose another port with --listen or --http")


def check_firewall() -> Sequence[Finding]:
    """What can be told without being root."""
    return [judge_firewall(_ufw(), _runs("firewalld"), _nft())]


def judge_firewall(ufw: str | None, firewalld: bool, rules: str | None) -> Finding:
    """`ufw`: its configuration; `rules`: of nftables. None where they cannot be read."""
    if ufw is not None and "ENABLED=yes" in ufw.splitlines():
        return warn(
            "firewall", "ufw is active", "on a master: ufw allow 7070:7073/tcp, and 8080/tcp for HTTP"
        )
    if firewalld:
        advice = "on a master: firewall-cmd --permanent --add-port=7070-7073/tcp --add-port=8080/tcp, then --reload"
        return warn("firewall", "firewalld is active", advice)
    if rules is not None and "hook input" in rules and ("policy drop" in rules or "reject" in rules):
        advice = "on a master: let TCP 7070-7073 and 8080 in"
        return warn("firewall", "nftables refuses some connections", advice)
    if rules is None:
        return ok("firewall", "none of ufw and firewalld; nftables' rules are for root to read")
    return ok("firewall", "none active")


def _ufw() -> str | None:
    try:
        return _UFW.read_text()
    except OSError:
        return None


def _runs(name: str) -> bool:
    return any(process.info["name"] == name for process in psutil.process_iter(["name"]))


def _nft() -> str | None:
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None:
        return None
    try:
        ended = subprocess.run(
            [program, "list", "ruleset"], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def check_addresses() -> Sequence[Finding]:
    """The addresses that others may reach, and whether the own name leads to one."""
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
    return judge_addresses(name, addresses, resolved)


def judge_addresses(name: str, addresses: Iterable[str], resolved: Iterable[str]) -> Sequence[Finding]:
    lan = sorted({address for address in addresses if _reachable(address)})
    found = (
        ok("addresses", ", ".join(lan))
        if lan
        else warn("addresses", "only this computer itself", "connect it to a network")
    )
    targets = sorted(set(resolved))
    if not targets:
        advice = f"add '127.0.1.1 {name}' to /etc/hosts; workers should connect by address"
        return [found, warn("host name", f"{name} does not resolve", advice)]
    return [found, ok("host name", f"{name} is {', '.join(targets)}")]


def _reachable(address: str) -> bool:
    parsed = ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def check_mtu() -> Sequence[Finding]:
    return [judge_mtu({name: stats.mtu for name, stats in psutil.net_if_stats().items() if stats.isup})]


def judge_mtu(sizes: Mapping[str, int]) -> Finding:
    """`sizes`: bytes per interface that is up; 0 where the system does not say."""
    small = {name: mtu for name, mtu in sizes.items() if 0 < mtu < _MIN_MTU}
    if small:
        found = ", ".join(f"{name} {mtu}" for name, mtu in small.items())
        return warn("MTU", found, "large messages are cut into many packets: raise it to 1500 where possible")
    return ok("MTU", ", ".join(f"{name} {mtu}" for name, mtu in sizes.items()) or "no interface is up")
