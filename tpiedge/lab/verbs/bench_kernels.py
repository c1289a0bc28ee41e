"""The command `tpiedge bench kernels`."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.options import Location
from tpiedge.errors import UserError
from tpiedge.host.device import available_memory_bytes, default_threads
from tpiedge.kernels.panels import FORMATS
from tpiedge.lab.bench.figures import check_names, integers, milliseconds
from tpiedge.lab.verbs.flags import plots
from tpiedge.progress import LiveLine
from tpiedge.tracing.collection import writable
from tpiedge.wire.fields import KVPrecision

_KERNELS = ("project", "contract", "ffn", "attention", "rms_norm", "rope", "swiglu")
_ALL = (*_KERNELS, "experts")
_PRECISIONS: tuple[KVPrecision, ...] = get_args(KVPrecision)
_KERNELS_HELP = "Kernels, a list. experts: 128 quantised ones of FFN / 8 columns, of which a token has 8."
_SHAPE = re.compile(r"(\d{1,6})x(\d{1,6})", re.ASCII)


@click.command()
@click.option(
    "--shapes",
    default="4096x11008",
    show_default=True,
    help="HIDDENxFFN, a list. project maps hidden to FFN (gate, up), contract maps FFN to hidden (down).",
)
@click.option("--tokens", default="1,2,4,8,16,128,512", show_default=True, help="Tokens of a step, a list.")
@click.option("--precisions", default="f32,bf16,q8,q4", show_default=True, help="Weight or KV precisions.")
@click.option("--threads", help="Numbers of threads.  [default: 1, and the cores that this process may use]")
@click.option("--kernels", "names", default=",".join(_KERNELS), show_default=True, help=_KERNELS_HELP)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Per case.")
@json_option
@click.option(
    "--png", type=Location(dir_okay=False), metavar="FILE", help="Draw the roofline of the products."
)
def kernels(
    shapes: str,
    tokens: str,
    precisions: str,
    threads: str | None,
    names: str,
    repeats: int,
    as_json: bool,
    png: Path | None,
) -> None:
    """Measure time, bytes per second and operations per second of the kernels.

    Every repeat also measures memory reads, multiplications in registers, and torch's kernels for f32 and bf16. The
    calls use copies of the weights in turn, so that weights come from memory, as in a model.
    """
    wanted = _shapes(shapes)
    chosen, given = names.split(","), precisions.split(",")
    check_names("--kernels", chosen, _ALL)
    check_names("--precisions", given, _PRECISIONS)
    stored = [one for one in _PRECISIONS if one in given]
    rows = integers("--tokens", tokens, 1, 8192)
    counts = integers("--threads", threads, 1, 1024) if threads else sorted({1, default_threads()})
    # matplotlib is imported before minutes of measuring.
    target, drawing = (writable(png), plots()) if png else (None, None)
    record = _measure(chosen, wanted, stored, rows, counts, repeats)
    if drawing is not None:
        drawing.draw_roofline(record, target)
        click.echo(f"drawn: {target}", err=True)
    if as_json:
        click.echo(json.dumps(record))
    else:
        _print(record)


def _measure(
    names: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
    threads: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    from tpiedge.kernels.shared_library import kernel_library, why_missing
    from tpiedge.lab.bench.kernel_cases import BufferRotation, cases_of, check_room  # imports torch
    from tpiedge.lab.bench.kernel_times import Bench, last_level_cache_bytes

    library = kernel_library()
    if library is None and any(one in FORMATS for one in precisions):
        raise UserError(
            f"q8 and q4 need native kernels, which {why_missing()}; or give --precisions f32,bf16"
        )
    cache_bytes = last_level_cache_bytes()
    # Three times the largest cache lies between two uses of an operand.
    rotated_bytes = max(128 << 20, 3 * cache_bytes)
    rotation = BufferRotation(rotated_bytes)
    check_room(names, shapes, precisions, tokens, rotation, available_memory_bytes())
    makers = list(cases_of(names, shapes, precisions, tokens, rotation))
    count = len(makers) * len(tokens) * len(threads)
    progress, begun = LiveLine(), itertools.count(1)
    bench = Bench(
        library, rotated_bytes, lambda name: progress.update(f"measuring {next(begun)} of {count}: {name}")
    )
    found: list[dict[str, Any]] = []
    try:
        for make in makers:
            found += bench.measure(make, threads, repeats)
    finally:
        progress.finish()
    return {
        "instruction_set": library.isa if library else None,
        "last_level_cache_bytes": cache_bytes,
        "rotated_bytes": rotated_bytes,
        "results": found,
    }


def _shapes(text: str) -> list[tuple[int, int]]:
    """Parses '4096x11008' as [(4096, 11008)]. Raises UserError."""
    found = []
    for item in text.split(","):
        match = _SHAPE.fullmatch(item.strip())
        if match is None:
            raise UserError(f"--shapes {text[:60]!r}: write HIDDENxFFN, like 4096x11008,2048x5632")
        hidden, columns = int(match[1]), int(match[2])
        if min(hidden, columns) < 32 or hidden % 2 or hidden * columns > 1 << 28:
            raise UserError(
                f"--shapes {item}: an even hidden size, 32 at least each, and 2^28 weights at most"
            )
        found.append((hidden, columns))
    return found


def _print(record: dict[str, Any]) -> None:
    columns = [
        "kernel",
        "precision",
        "tokens",
        "threads",
        "ms",
        "GB/s",
        "of reading",
        "GOP/s",
        "of peak",
        "torch ms",
    ]
    rows = [
        [
            f"{found['kernel']} {found['shape']}{'' if found['native'] else ' (torch)'}",
            found["precision"],
            str(found["tokens"]),
            str(found["threads"]),
            milliseconds(found["seconds"], 3),
            f"{found['bytes_per_s']['median'] / 1e9:.1f}",
            _percent(found["of_read_bandwidth"]),
            f"{found['operations_per_s']['median'] / 1e9:.0f}",
            _percent(found["of_peak"]),
            milliseconds(found["torch_seconds"], 3) if found["torch_seconds"] else "-",
        ]
        for found in record["results"]
    ]
    print_table(columns, rows)
    repeats = [found["repeats"] for found in record["results"]]
    low, high = min(repeats, default=0), max(repeats, default=0)
    click.echo(
        f"repeats: {low if low == high else f'{low} to {high}'}; "
        f"instruction set: {record['instruction_set'] or 'none, torch computes'}; GB/s of what is read and written "
        "once; of reading, of peak: medians of the parts of what was measured in the same repeat"
    )


def _percent(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{100 * found['median']:.0f} %"
