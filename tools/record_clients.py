"""Record what real clients send: installs them, has each used, and writes their requests.

    python -m tools.record_clients [CLIENT ...] [--cache FOLDER] [--out FOLDER]

Every client talks to a server that answers plausibly without a model. Its requests go to OUT/CLIENT.json, each once,
without secrets, hosts, changing names and long texts; tests/golden/requests/corpus.jsonl has what comes of each.
`tools/clients/catalogue.py` lists the clients. Open WebUI and Continue are represented by the code that sends their
requests.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.clients.catalogue import CLIENTS
from tools.clients.install import command, install
from tools.clients.recorder import Recorder

_LIMIT_S = 300.0
#: The user's proxies and keys are none of the clients' business.
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a client failed, or asked for a path that no known client uses."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}; all without one"
    )
    parser.add_argument("--cache", type=Path, default=Path("build/clients"), help="where they are installed")
    parser.add_argument("--out", type=Path, default=Path("tests/corpus"))
    options = parser.parse_args(arguments)
    names = options.clients or list(CLIENTS)
    strange = [name for name in names if name not in CLIENTS]
    if strange:
        parser.error(f"no client is called {strange[0]}: {', '.join(CLIENTS)} are")
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not _record(name, options.cache, options.out)]
    return 1 if failed else 0


def _record(name: str, cache: Path, out: Path) -> bool:
    client, recorder, folder = CLIENTS[name], Recorder(), cache.absolute() / name
    try:
        install(folder, client)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{name} was not installed: {error}", file=sys.stderr)
        return False
    url = recorder.start()
    environment = {key: os.environ[key] for key in _PASSED if key in os.environ} | {"RECORD_URL": url}
    try:
        ended = subprocess.run(
            command(folder, client), env=environment, timeout=_LIMIT_S, stdout=sys.stderr, check=False
        )
    finally:
        recorder.stop()
    for path in recorder.unknown:
        print(f"{name} asked for what is not known here: {path}", file=sys.stderr)
    if ended.returncode or recorder.unknown:
        print(f"{name} was not recorded: status {ended.returncode}", file=sys.stderr)
        return False
    found = {"client": client.package, "version": client.version, "requests": recorder.requests}
    target = out / f"{name}.json"
    target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"{target}: {len(recorder.requests)} requests of {client.package} {client.version}")
    return True


if __name__ == "__main__":
    sys.exit(main())
