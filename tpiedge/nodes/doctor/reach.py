"""Checks of the way to a master: name, ports with their timing, and its clock."""

import http.client
import re
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tpiedge.errors import UserError
from tpiedge.nodes.doctor.finding import Finding, fail, ok, warn
from tpiedge.nodes.doctor.network import HTTP_PORT
from tpiedge.units import format_seconds

__all__ = ["check_master_clock", "check_reach", "judge_skew", "parse_master"]

_CONTROL_PORT = 7070
_OTHERS = ("tensors", "files", "pairing")
_CONNECT_S = 2.0
_MAX_SKEW_S = 60.0
_SLOW_S = 0.02
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+))(?::(\d{1,5}))?")


def parse_master(text: str) -> tuple[str, int]:
    """'pi4', 'pi4:7070', '[fe80::1]:7070' -> host and control port. Raises UserError."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match[3] or _CONTROL_PORT) if match else 0
    if match is None or not 1 <= port <= 65532:
        raise UserError(f"--connect {text[:80]!r} is not HOST or HOST:PORT, like 192.168.1.10:7070")
    return match[1] or match[2], port


def check_reach(host: str, port: int) -> Sequence[Finding]:
    """The control port must answer; the others open as they are needed."""
    control = _connect(host, port)
    name = f"master {host}:{port}"
    if isinstance(control, str):
        advice = "is the master running, its --listen reachable from here, and its firewall open?"
        return [fail(name, control, advice)]
    if control > _SLOW_S:
        first = warn(
            name, f"connected in {format_seconds(control)}", "a token waits for this often: use a cable"
        )
    else:
        first = ok(name, f"connected in {format_seconds(control)}")
    return [first, *(_other(host, port + step, purpose) for step, purpose in enumerate(_OTHERS, 1))]


def _other(host: str, port: int, purpose: str) -> Finding:
    name, result = f"master {host}:{port}", _connect(host, port)
    if isinstance(result, float):
        return ok(name, f"{purpose}, connected in {format_seconds(result)}")
    if result == "refused":
        return ok(name, f"{purpose}, nobody listens now (the way is free)")
    return warn(name, f"{purpose}, {result}", f"let TCP {port} through the master's firewall")


def _connect(host: str, port: int) -> float | str:
    """Seconds of the second connection (the first may have resolved names and addresses), or why there is none."""
    try:
        for _ in range(2):
            started = time.perf_counter()
            socket.create_connection((host, port), _CONNECT_S).close()
        return time.perf_counter() - started
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return error.strerror or str(error)


def check_master_clock(host: str, port: int = HTTP_PORT) -> Sequence[Finding]:
    """Compare with the date that the master's HTTP server puts on every answer; whole seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    except (OSError, http.client.HTTPException):
        return [ok("master's clock", f"not compared: no HTTP at {host}:{port}")]
    finally:
        connection.close()
    return [judge_skew(date, datetime.now(UTC))]


def judge_skew(date: str | None, now: datetime) -> Finding:
    """`date`: of an HTTP answer."""
    try:
        skew_s = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return ok("master's clock", "not compared: its HTTP server tells no date")
    if abs(skew_s) > _MAX_SKEW_S:
        found = f"differs by {format_seconds(abs(skew_s))}"
        return warn(
            "master's clock", found, "set both clocks (timedatectl set-ntp true): tokens would expire wrongly"
        )
    return ok("master's clock", "agrees")
