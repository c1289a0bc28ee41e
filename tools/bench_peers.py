"""Compare tpiedge with other software on this computer, side by side in one run.

    .venv/bin/python tools/bench_peers.py transformers CHECKPOINT --precision bf16 [--compute bf16] [--threads 2]
    .venv/bin/python tools/bench_peers.py offload [--precision q4] [--json] [--limits 60%,90%] [--repeats 5]
    .venv/bin/python tools/bench_peers.py decode [--shapes 1.1b,8b] [--precisions q4,q4_k_m] [--threads 1,2] [--json]
    .venv/bin/python tools/bench_peers.py decode --testbed pair --threads 1 [--wire int8] [--prompt-tokens 128]
    .venv/bin/python tools/bench_peers.py serve [--streams 1,4,16] [--precision q4] [--threads 2] [--repeats 5]
    .venv/bin/python tools/bench_peers.py agreement --model FILE.gguf [--text FILE] [--context 512] [--compute f32]
    .venv/bin/python tools/bench_peers.py allreduce [--testbed paper-8] [--nodes 2,4,8] [--bytes 4]

transformers: both hold the same weights at the same time and answer in alternation (A B A B ...), so that a noisy
neighbour hits both. Make the checkpoint with tools/make_checkpoint.py.

offload: a model larger than its memory. tpiedge, llama.cpp (memory-mapped), accelerate (disk_offload, and device_map
with offload_folder) and AirLLM decode with the same bf16 weights, or tpiedge and llama.cpp with as many bits of four or
eight; each in a fresh process under the same limit of a control group, which counts page cache too; in alternation,
with the disk's own rate measured between. The others are installed and built on the first run, which takes about ten
minutes. Linux, root.

decode: llama.cpp against one node of tpiedge with equal bits (Q4_0 and q4, Q8_0 and q8, the same Q4_K_M file) and
threads, all weights in memory: tokens per second of prompts and of an answer, bytes of weights, and whether the ratios
meet their bounds. Random weights of real shapes are written for it and removed afterwards; the 7B and 8B shapes take
up to 18 GB of disk and as much memory, 30b-a3b 35 GB of disk. Models that do not fit into memory together are loaded
in turn, each after the other has left memory and page cache. Where it fails or is interrupted, what was measured
before is printed all the same, with the error. With --testbed (Linux, root) both use two of its devices: tpiedge two
nodes, llama.cpp its RPC server with half of the layers.

serve: llama-server against `tpiedge master`, many streams at once, with equal bits and threads: both run, or are
started in turn as above, and are asked in alternation over HTTP by one client. Random weights as for decode. Tokens
per second in all, and while all streams received an answer; the rate of a prompt alone comes from the same repeat.

agreement: the logits of llama.cpp and of tpiedge for the same GGUF file and the same tokens of a text: how often the
likeliest tokens are equal, and the Kullback-Leibler divergence of llama.cpp's probabilities from tpiedge's. Each
document of the text (a form feed ends one) is read by itself, up to --context tokens.

allreduce: torch.distributed's gloo against tpiedge, one process per rank and both over the same links: those of a
testbed (Linux, root), or loopback.

Printed: medians with minimum and maximum, and the ratio pair by pair.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import get_args

from platformdirs import user_cache_path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.peers.decode import compare_decode
from tools.peers.models import PRECISIONS, SHAPES
from tools.peers.offload import PEERS, compare_offload
from tools.peers.serve import compare_serve
from tools.peers.table import table
from tpiedge.errors import TpiedgeError
from tpiedge.host.device import default_threads
from tpiedge.wire.fields import CollectiveChoice, Compute, WirePrecision

_INTERRUPTED = 130


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return int(arguments.compare(arguments))
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    _add_transformers(verbs.add_parser("transformers", help="decode and prefill of one process each"))
    _add_offload(verbs.add_parser("offload", help="decode of a model larger than its memory"))
    _add_decode(verbs.add_parser("decode", help="prefill and decode with quantised weights"))
    _add_serve(verbs.add_parser("serve", help="many streams at once, over HTTP"))
    _add_agreement(verbs.add_parser("agreement", help="logits for a text, from the same GGUF file"))
    _add_allreduce(verbs.add_parser("allreduce", help="sums over a network"))
    return parser


def _add_transformers(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_transformers)
    verb.add_argument("checkpoint", type=Path)
    verb.add_argument("--precision", choices=("f32", "bf16"), default="bf16")
    verb.add_argument(
        "--compute", choices=("f32", "bf16"), help="tpiedge's arithmetic [default: --precision's]"
    )
    verb.add_argument("--threads", type=int, default=2)
    verb.add_argument("--prompt-tokens", type=int, default=64)
    verb.add_argument("--tokens", type=int, default=24)
    verb.add_argument("--repeats", type=int, default=5)
    verb.add_argument("--cache", type=Path)


def _add_offload(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_offload)
    verb.add_argument("--checkpoint", type=Path, help="in bf16 [default: random]")
    verb.add_argument("--shape", choices=SHAPES, help="of random weights [default: 1.1b]")
    verb.add_argument(
        "--precision", choices=PRECISIONS, default="bf16", help="of random weights [default: bf16]"
    )
    verb.add_argument("--limits", default="60%,90%", help="parts of the model's file, or sizes: 60%%,700MB")
    verb.add_argument(
        "--peers", type=_names_of(PEERS), default=PEERS, help=f"of: {', '.join(PEERS)} [default: all]"
    )
    verb.add_argument("--threads", type=_positive, default=2)
    verb.add_argument("--tokens", type=_positive, default=8, help="timed ones; a quarter for the slow")
    verb.add_argument("--repeats", type=_positive, default=5)
    verb.add_argument("--deadline", type=_positive, default=150, help="seconds for one measurement")
    verb.add_argument(
        "--work",
        type=Path,
        default=user_cache_path("tpiedge") / "peers",
        help="keeps what was installed and made",
    )
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _add_decode(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_decode)
    verb.add_argument(
        "--shapes", type=_names_of(SHAPES), default=("1.1b",), help=f"{','.join(SHAPES)} [default: 1.1b]"
    )
    verb.add_argument(
        "--precisions",
        type=_names_of((*PRECISIONS, "q4_k_m")),
        default=("q4", "q8", "q4_k_m"),
        help="[default: q4,q8,q4_k_m]; bf16, too",
    )
    verb.add_argument("--threads", type=_counts, help="like 1,2 [default: 1, and all cores]")
    verb.add_argument("--testbed", help="its name or file; on two of its devices [default: one machine]")
    verb.add_argument(
        "--wire", choices=get_args(WirePrecision), default="f32", help="what travels [default: f32]"
    )
    verb.add_argument("--prompt-tokens", type=_counts, default=(256, 512), help="[default: 256,512]")
    verb.add_argument("--tokens", type=_positive, default=64, help="of an answer [default: 64]")
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    _add_repeats(verb)


def _add_repeats(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--repeats", type=_positive, default=5)
    verb.add_argument(
        "--work", type=Path, default=user_cache_path("tpiedge") / "peers", help="keeps what was installed"
    )


def _add_serve(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_serve)
    verb.add_argument("--shape", choices=SHAPES, default="1.1b", help="[default: 1.1b]")
    verb.add_argument("--precision", choices=PRECISIONS, default="q4", help="[default: q4]")
    verb.add_argument("--streams", type=_counts, default=(1, 4, 16), help="like 1,4,16 [default: 1,4,16]")
    verb.add_argument("--threads", type=_positive, default=default_threads(), help="[default: all cores]")
    verb.add_argument("--prompt-tokens", type=_positive, default=128, help="[default: 128]")
    verb.add_argument("--tokens", type=_positive, default=128, help="of an answer [default: 128]")
    verb.add_argument("--context", type=_positive, default=512, help="of one stream [default: 512]")
    verb.add_argument("--waves", type=_positive, default=1, help="requests of each stream in a repeat")
    verb.add_argument(
        "--no-amx", dest="amx", action="store_false", help="llama.cpp without the processor's matrix tiles"
    )
    verb.add_argument("--options", default="", help="more flags of 'tpiedge master', in one word")
    verb.add_argument("--llama-options", default="", help="more flags of llama-server, in one word")
    _add_repeats(verb)


def _add_agreement(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_agreement)
    verb.add_argument("--model", type=Path, required=True, help="a GGUF file with a tokenizer")
    verb.add_argument("--text", type=Path, help="in UTF-8 [default: the held-out stories of the demo model]")
    verb.add_argument(
        "--context", type=_positive, default=512, help="most tokens of a document [default: 512]"
    )
    verb.add_argument("--documents", type=_positive, help="at most [default: all]")
    verb.add_argument("--compute", choices=get_args(Compute), help="tpiedge's arithmetic [default: usual]")
    verb.add_argument("--threads", type=_positive, default=default_threads(), help="[default: all cores]")
    verb.add_argument("--cache", type=Path)
    verb.add_argument(
        "--work", type=Path, default=user_cache_path("tpiedge") / "peers", help="keeps what was installed"
    )


def _add_allreduce(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(compare=_allreduce)
    verb.add_argument(
        "--testbed", help="its name or file; ranks on its devices in their order [default: none]"
    )
    verb.add_argument("--nodes", type=_node_counts, default=(8,), help="like 2,4,8 [default: 8]")
    verb.add_argument("--bytes", type=_positive, default=4, help="payload [default: 4]")
    verb.add_argument(
        "--collective",
        choices=get_args(CollectiveChoice),
        default="auto",
        help="tpiedge's [default: what it would choose]",
    )
    verb.add_argument("--rounds", type=_positive, default=100, help="all-reduces in a repeat [default: 100]")
    verb.add_argument("--repeats", type=_positive, default=5)


def _names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(","))
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return names


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_positive(item.strip()) for item in text.split(","))


def _node_counts(text: str) -> tuple[int, ...]:
    counts = _counts(text)
    if not all(2 <= count <= 64 for count in counts):
        raise argparse.ArgumentTypeError(f"{text!r}: from 2 to 64 nodes")
    return counts


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _transformers(arguments: argparse.Namespace) -> int:
    from tools.peers.resident import compare_transformers  # imports torch

    print(json.dumps(compare_transformers(arguments), indent=2))
    return 0


def _offload(arguments: argparse.Namespace) -> int:
    record = compare_offload(arguments)
    print(json.dumps(record, indent=2) if arguments.json else table(record))
    return 0


def _decode(arguments: argparse.Namespace) -> int:
    compare_decode(arguments)
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    compare_serve(arguments)
    return 0


def _agreement(arguments: argparse.Namespace) -> int:
    from tools.peers.agreement import compare_agreement  # imports torch

    print(json.dumps(compare_agreement(arguments), indent=2))
    return 0


def _allreduce(arguments: argparse.Namespace) -> int:
    from tools.peers.allreduce import compare_allreduces  # imports torch

    print(json.dumps(compare_allreduces(arguments), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
