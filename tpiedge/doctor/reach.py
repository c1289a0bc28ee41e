"""Checks of the way to a master: name, ports with their timing, and its clock."""

import http.client
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tpiedge.doctor.finding import Finding, fail, ok, skip, warn
from tpiedge.doctor.network import HTTP_PORT
from tpiedge.host.addresses import Address
from tpiedge.transport.probe import passes_large_packets
from tpiedge.units import format_seconds

_TENSORS, _FILES = "tensors", "files"
_OTHERS = (_TENSORS, _FILES, "pairing")
_NO_SUCH_HOST = "the host is not known here"
_CONNECT_S = 2.0
_MAX_SKEW_S = 60.0
_SLOW_S = 0.02


def check_reach(master: Address) -> Sequence[Finding]:
    """The control port must answer, and those beside it; tensors' opens as it is needed."""
    control = _connect(master)
    name = f"master {master}"
    if isinstance(control, str):
        running = "is the master running, its --listen reachable from here, and its firewall open?"
        spelling = "check the spelling, or give its IP address"
        return [fail(name, control, spelling if control == _NO_SUCH_HOST else running)]
    if control > _SLOW_S:
        first = warn(
            name, f"connected in {format_seconds(control)}", "a token waits for this often: use a cable"
        )
    else:
        first = ok(name, f"connected in {format_seconds(control)}")
    return [first, *(_other(master, master.beside(step), purpose) for step, purpose in enumerate(_OTHERS, 1))]


def check_large_packets(master: Address) -> Sequence[Finding]:
    """Whether the way to the control port is as wide as it says."""
    return [judge_packets(passes_large_packets(master.host, master.port, _CONNECT_S))]


def judge_packets(passed: bool | None) -> Finding:
    """`passed`: whether large packets reach the master; None where that cannot be told."""
    name = "large packets"
    if passed is None:
        return skip(name, "not tried: no connection to the master, or the system does not tell")
    if passed:
        return ok(name, "they reach the master")
    advice = "give this computer's interface a smaller one (ip link set DEVICE mtu 1280), or mend the way"
    return fail(
        name, "they vanish on the way to the master, small ones pass: a smaller MTU is in between", advice
    )


def _other(control: Address, address: Address, purpose: str) -> Finding:
    name, result = f"master {address}", _connect(address)
    if isinstance(result, float):
        return ok(name, f"{purpose}, connected in {format_seconds(result)}")
    if result == "refused" and purpose == _TENSORS:
        return ok(name, f"{purpose}, nobody listens now (the way is free)")
    verdict = fail if purpose == _FILES else warn  # who has a token needs no pairing
    way = f"let TCP {address.port} through the master's firewall"
    if result != "refused":
        return verdict(name, f"{purpose}, {result}", way)
    found = f"{purpose}, nobody listens, as a master does"
    return verdict(name, found, f"is port {control.port} that of its --listen? or {way}")


def _connect(address: Address) -> float | str:
    """Seconds of the second connection (the first may have resolved names and addresses), or why there is none."""
    try:
        for _ in range(2):
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


def check_master_clock(host: str, port: int = HTTP_PORT) -> Sequence[Finding]:
    """Compare with the date that the master's HTTP server puts on every answer; whole seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    except (OSError, http.client.HTTPException):
        return [skip("master's clock", f"not compared: no HTTP at {host}:{port}")]
    finally:
        connection.close()
    return [judge_skew(date, datetime.now(UTC), f"{host}:{port}")]


def judge_skew(date: str | None, now: datetime, server: str) -> Finding:
    """`date`: of an HTTP answer from `server`, which may be another program's or another master's."""
    try:
        skew_s = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return skip("master's clock", f"not compared: the HTTP server at {server} tells no date")
    if abs(skew_s) > _MAX_SKEW_S:
        found = f"differs by {format_seconds(abs(skew_s))} from HTTP at {server}"
        return warn(
            "master's clock", found, "set both clocks (timedatectl set-ntp true): tokens would expire wrongly"
        )
    return ok("master's clock", f"agrees with HTTP at {server}")
