"""Ship a random pack between two real processes over loopback (CURVE, sha256): rate and memory of either side.

    .venv/bin/python tools/bench_shipping.py [--preset tinyllama] [--layers 22] [--folder FOLDER] [--repeats 3]

Memory is the growth of the peak (VmHWM) from just before the transfer; the pack and the store are removed afterwards.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.store.store import ShardStore
from tpiedge.pack.writing.writer import write_pack
from tpiedge.shipping.fetcher import fetch
from tpiedge.shipping.server import ShipServer
from tpiedge.transport.framing import FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke

MIB = 1 << 20


def main() -> int:
    """Parse the command line; run the comparison, or one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tinyllama")
    parser.add_argument("--layers", type=int, default=22, help="distinct layers: what is shipped")
    parser.add_argument("--folder", type=Path, help="where pack and store go for the time being")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--role", choices=("serve", "fetch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        order = json.loads(sys.stdin.readline())
        print(json.dumps((_serve if arguments.role == "serve" else _fetch)(order)), flush=True)
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="tpiedge-ship-") as folder:
        print(json.dumps(_compare(arguments, Path(folder)), indent=2))
    return 0


def _compare(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    config = ModelConfig.from_huggingface(preset(arguments.preset), arguments.preset)
    spec = model_spec(config)
    source = RandomSource.for_spec(0, spec, "BF16")
    report = write_pack(
        spec, source, Precision.BF16, folder / "pack", min(arguments.layers, len(spec.layers))
    )
    share = [config.num_heads, -(-config.intermediate_size // 128)]
    runs = [_run(report.path, folder / "store", share) for _ in range(arguments.repeats)]
    return {"preset": arguments.preset, "share": "all heads and tiles", "runs": runs}


def _run(pack: Path, store: Path, share: list[int]) -> dict[str, Any]:
    master, worker = CurveKeys.generate(), CurveKeys.generate()
    order: dict[str, Any] = {"pack": str(pack), "store": str(store), "share": share, "worker": worker.public}
    order |= {"public": master.public, "secret": master.secret}
    with _process("serve") as server, _process("fetch") as client:
        _tell(server, order)
        order |= _heard(server) | {"secret": worker.secret}
        _tell(client, order)
        fetched = _heard(client)
        _hang_up(server)
        served = _heard(server)
    shutil.rmtree(store)
    return fetched | served


def _process(role: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, __file__, "--role", role], stdin=pipe, stdout=pipe, text=True)


def _tell(process: subprocess.Popen[str], order: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that it writes."""
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def _hang_up(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _serve(order: Mapping[str, Any]) -> dict[str, object]:
    keys = CurveKeys(order["public"], order["secret"])
    hub = ZmqHub("tcp://127.0.0.1:*", keys, "master", {order["worker"]: "w"}, plane=FILES)
    server = ShipServer(hub)
    identity = server.serve(Pack.open(Path(order["pack"])))
    print(json.dumps({"address": hub.address, "identity": identity}), flush=True)
    before = _rss("VmRSS")
    server.start()
    cpu = time.process_time()
    sys.stdin.read()
    spent = time.process_time() - cpu
    grown = _rss("VmHWM") - before
    server.close()
    return {"server_extra_mib": round(grown / MIB, 1), "server_cpu_s": round(spent, 2)}


def _fetch(order: Mapping[str, Any]) -> dict[str, object]:
    heads, tiles = order["share"]
    keys = CurveKeys(order["worker"], order["secret"])
    with ZmqSpoke(order["address"], order["public"], keys, "w", hub_name="master", plane=FILES) as spoke:
        store = ShardStore(Path(order["store"]))
        before, cpu, started = _rss("VmRSS"), time.process_time(), time.monotonic()
        totals: list[int] = []
        share = NodeShare(Share(0, heads), Share(0, tiles))
        copy = fetch(
            spoke,
            store,
            order["identity"],
            share,
            lambda _done, total: totals.append(total),
        )
        elapsed, spent = time.monotonic() - started, time.process_time() - cpu
        copy.close()
    return {
        "bytes": totals[0],
        "seconds": round(elapsed, 2),
        "mb_per_s": round(totals[0] / elapsed / 1e6, 1),
        "client_extra_mib": round((_rss("VmHWM") - before) / MIB, 1),
        "client_cpu_s": round(spent, 2),
    }


def _rss(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    sys.exit(main())
