"""Predict, as the planner does, the memory and the speed of a model of a known shape on machines that are alike.

    .venv/bin/python tools/predict_speed.py qwen3-30b-a3b --machines 4 --memory 7GB --reads 9GB --round-trip 0.3ms

`--reads`: what a machine's cores read from memory in a second. Decoding is taken to read 0.85 of it, the least that
tools/bench_peers.py asks of mixtures. All weights must be in memory. Nothing is measured.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from tpiedge.lab.testbed.description import parse_rate, parse_time
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import MANIFEST_NAME, BlobIds, Manifest, manifest_text
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import CHOICES, Precision
from tpiedge.planner.needs import Infeasible, ModelFacts, model_facts
from tpiedge.planner.prediction import MachineFacts, predict
from tpiedge.units import format_bytes, parse_bytes
from tpiedge.wire.fields import Keeping

_REACHED: Final = 0.85
_CONTEXT: Final = 4096
_NO_ID: Final = "0" * 64


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=sorted(PRESETS), metavar="PRESET")
    parser.add_argument("--precision", choices=[one.value for one in CHOICES], default="q4")
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--memory", type=parse_bytes, help="that each may use [default: enough]")
    parser.add_argument("--reads", type=parse_bytes, required=True, help="of each, in a second")
    parser.add_argument("--round-trip", type=parse_time, default=0.0003, help="[default: 0.3ms]")
    parser.add_argument("--link", type=parse_rate, default=125e6, help="[default: 1Gbit/s]")
    given = parser.parse_args()
    machine = MachineFacts(
        speed=_REACHED * given.reads,
        memory_bytes=given.memory,
        keeping=Keeping(pin="all"),
        round_trip_s=given.round_trip,
        link_bytes_per_s=given.link,
    )
    facts = facts_of(given.preset, Precision(given.precision))
    print(predicted(facts, [machine] * given.machines))
    return 0


def facts_of(name: str, precision: Precision) -> ModelFacts:
    """Returns the facts of a preset's pack, of which only the manifest is written."""
    spec = model_spec(ModelConfig.from_huggingface(preset(name), f"preset {name}"))
    ids = BlobIds(_NO_ID, (_NO_ID,) * len(spec.layers), _NO_ID)
    storage = Storage.of(precision, tied=spec.tied)
    manifest = Manifest.of(spec, storage, f"preset {name}", len(spec.layers), ids)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST_NAME).write_bytes(manifest_text(manifest))
        facts = model_facts(Pack(Path(folder)), compute="int8" if precision.quantised else "f32", kv="bf16")
    return replace(facts, capacity_tokens=_CONTEXT, name=name)


def predicted(facts: ModelFacts, machines: Sequence[MachineFacts]) -> str:
    named = [replace(one, name=f"machine {number}") for number, one in enumerate(machines, 1)]
    plan = predict(facts, named)
    if isinstance(plan, Infeasible):
        return plan.reason
    most = max(need.total_bytes for need in plan.needs)
    parts = {"layers": plan.layers_s, "head": plan.head_s, "all-reduces": plan.reduce_s}
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in parts.items())
    return f"{1 / plan.step_s:.1f} tokens/s ({times}), at most {format_bytes(most)} each"


if __name__ == "__main__":
    sys.exit(main())
