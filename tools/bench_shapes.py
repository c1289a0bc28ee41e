"""Peak memory and speed of large shapes on many nodes of this computer, beside table 1 of the TPI-LLM paper.

    .venv/bin/python tools/bench_shapes.py --packs DIR [--shapes llama2-7b,llama2-70b] [--precision q4] [--json]

Random weights of the real shape, of which two layers are stored and repeated: the bytes that a node reads, holds and
computes are those of the whole model. The paper's are f32. Every node may use `--memory`, or the least that it works
with. All nodes share this computer's disk and cores, so seconds per token are those of one disk that reads the whole
model.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.local.layout import model_facts_of
from tpiedge.local.prepare import prepare
from tpiedge.planner.needs import NodeFacts, smallest_bytes
from tpiedge.planner.solve import Plan, ShareWeight, evaluate
from tpiedge.units import format_bytes, parse_bytes

_LIMIT_S = 3600.0


@dataclass(frozen=True)
class PaperRow:
    """A row of table 1, with the memory scheduler, on 8 devices of 8 cores."""

    peak_gb: float
    s_per_token: float


PAPER = {
    "llama2-3b": PaperRow(1.4, 1.9),
    "llama2-7b": PaperRow(1.7, 2.6),
    "llama2-13b": PaperRow(2.1, 2.9),
    "llama3.1-8b": PaperRow(5.4, 4.3),
    "yi-34b": PaperRow(4.9, 13.7),
    "llama2-70b": PaperRow(3.1, 26.1),
    "llama3.1-70b": PaperRow(11.3, 29.9),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packs", type=Path, required=True, help="where the random packs are, or go")
    parser.add_argument("--shapes", default=",".join(name for name in PAPER if name != "llama3.1-70b"))
    parser.add_argument("--precision", choices=("f32", "bf16", "q8", "q4"), default="f32")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--memory", type=parse_bytes, help="per node [default: the least that works]")
    parser.add_argument("--tokens", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.shapes.split(",")]
    print(json.dumps(rows, indent=2) if arguments.json else table(rows))
    return 0


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    precision = arguments.precision
    pack = arguments.packs / f"{name}-{precision}"
    if not pack.exists():
        _tpiedge(
            "pack", "--random", name, "--distinct-layers", "2", "--precision", precision, "--out", str(pack)
        )
    prompt = ",".join(str(17 * index % 30000) for index in range(8))
    memory = arguments.memory or least_bytes(pack, arguments.nodes, 8 + arguments.tokens)
    print(f"{name}: {arguments.nodes} nodes of {format_bytes(memory)}", file=sys.stderr)
    answer = _tpiedge(
        "run", "--model", str(pack), "--nodes", str(arguments.nodes), "--threads", "1", "--memory", f"{memory}B",
        "--prompt-ids", prompt, "--max-tokens", str(arguments.tokens), "--ignore-eos", "--json",
    )  # fmt: skip
    record = json.loads(answer)
    nodes = [node["peak_rss_bytes"] for node in record["nodes"]]
    nodes[0] += record["master_peak_rss_bytes"]
    paper = PAPER.get(name)
    return {
        "shape": name,
        "precision": precision,
        "memory_bytes": memory,
        "peak_bytes": nodes,
        "s_per_token": record["s_per_token"],
        "ttft_s": record["ttft_s"],
        "disk_read_bytes": sum(node["disk_read_bytes"] for node in record["nodes"]),
        "paper": {"peak_gb": paper.peak_gb, "s_per_token": paper.s_per_token} if paper else None,
    }


def least_bytes(pack: Path, nodes: int, tokens: int) -> int:
    """Returns the largest of the nodes' smallest budgets, with even shares."""
    model = prepare(str(pack), None, None, None)
    facts = model_facts_of(model, tokens)
    node = NodeFacts(1.0)
    plan = evaluate(facts, [node] * nodes, [ShareWeight(1, 1)] * nodes)
    if not isinstance(plan, Plan):
        raise SystemExit(plan.reason)
    return max(smallest_bytes(facts, rank, share, node) for rank, share in enumerate(plan.shares))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| shape | budget | peak: rank 0 with the parent | the others, at most | the paper | s/token | the paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first, *others = row["peak_bytes"]
        paper = row["paper"] or {"peak_gb": "", "s_per_token": ""}
        speed = f"{row['s_per_token']:.1f}" if row["s_per_token"] is not None else "-"  # of a single token
        lines.append(
            f"| {row['shape']} | {format_bytes(row['memory_bytes'])} | {format_bytes(first)} | "
            f"{format_bytes(max(others, default=0))} | {paper['peak_gb']} GB | {speed} | "
            f"{paper['s_per_token']} |"
        )
    return "\n".join(lines)


def _tpiedge(*words: str) -> str:
    """Returns standard output of the command; its progress goes to the terminal."""
    command = [str(Path(sys.executable).with_name("tpiedge")), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S).stdout


if __name__ == "__main__":
    sys.exit(main())
