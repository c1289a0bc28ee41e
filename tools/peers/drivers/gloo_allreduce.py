"""One rank of torch.distributed's gloo, which does all-reduces as it is told. Lines of JSON on standard input:

    {"rank": 0, "size": 8, "address": OWN, "root": RANK_0, "port": OF_THE_STORE}      port 0 at rank 0: any

Rank 0 answers {"port": PORT}, which the others need; every rank answers {"ready": true} once all are linked. Then,
any number of times, for every rank alike:

    {"elements": 1, "warm_up": 20, "rounds": 100}

Every rank answers {"seconds": [...]}, one for each round. The end of the input ends the process.
"""

import gc
import json
import os
import sys
import time
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread

import psutil
import torch
import torch.distributed as dist

from tpiedge.lifeline import die_with_parent

_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    lines: SimpleQueue[bytes] = SimpleQueue()

    def feed() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        os._exit(0)

    die_with_parent()
    Thread(target=feed, daemon=True).start()
    job = json.loads(lines.get())
    # Otherwise gloo takes the interface of this computer's host name.
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(job["address"])
    torch.set_num_threads(1)
    first = job["rank"] == 0
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, and imported there without `as`
        job["root"], job["port"], job["size"], is_master=first, timeout=_TIMEOUT, wait_for_workers=False
    )
    if first:
        say({"port": store.port})
    dist.init_process_group("gloo", store=store, rank=job["rank"], world_size=job["size"], timeout=_TIMEOUT)
    dist.all_reduce(torch.zeros(1))
    say({"ready": True})
    # As tpiedge's ranks do.
    gc.freeze()
    while True:
        say({"seconds": reduce(**json.loads(lines.get()))})


def reduce(elements: int, warm_up: int, rounds: int) -> list[float]:
    partial = torch.zeros(elements)
    seconds = []
    for _ in range(warm_up + rounds):
        started = time.perf_counter()
        dist.all_reduce(partial)
        seconds.append(time.perf_counter() - started)
    return seconds[warm_up:]


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address."""
    for name, found in psutil.net_if_addrs().items():
        if address in (one.address for one in found):
            return name
    raise SystemExit(f"no network interface here has the address {address}")


def say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
