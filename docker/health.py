"""The health check of the image: status 0 if the master answers, or if the worker has joined and holds its links."""

import json
import os
import sys
import urllib.request
from pathlib import Path

import psutil

STATE = Path(os.environ["TPIEDGE_STATE"])


def main() -> str | None:
    """None, or what is wrong."""
    if (STATE / "worker").is_dir():
        return check_worker()
    return check_master()


def check_master() -> str | None:
    try:
        url = json.loads((STATE / "master" / "admin.json").read_text())["url"]
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return None if answer.status == 200 else f"/health answers {answer.status}"
    except OSError as error:
        return f"the master does not answer: {error}"


def check_worker() -> str | None:
    """The masters that it remembers are those that let it in."""
    try:
        masters = json.loads((STATE / "worker" / "masters.json").read_text())
    except OSError:
        return "it has not joined"
    ports = {int(address.rpartition(":")[2]) for address in masters}
    for link in psutil.net_connections("tcp"):
        if link.status == psutil.CONN_ESTABLISHED and link.raddr.port in ports:
            return None
    return "it has no link to its master"


if __name__ == "__main__":
    sys.exit(main())
