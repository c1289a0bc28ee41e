"""Draw the JSON of `tpiedge bench allreduce` and `tpiedge bench decode`.

    .venv/bin/tpiedge bench allreduce --testbed paper-8 --collective all --json > allreduce.json
    .venv/bin/python tools/plot_network.py allreduce.json [MORE.json ...] [--out FOLDER]

allreduce-latency.png: the smallest payload by latency of a link (figure 3 of TPI-LLM); dashed: latencies alone; hollow:
predictions. allreduce-payload.png: every payload, by network and nodes. decode.png: seconds per token by devices,
cores, bandwidth and latency (figure 5). Medians, with minimum and maximum as bars.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.network_plots.records import AllReduce, Decode, load
from tpiedge.errors import TpiedgeError, UserError

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        for path in draw(options.files, options.out):
            print(path)
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="JSON of a benchmark")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the pictures [default: here]")
    return parser


def draw(files: Iterable[Path], folder: Path) -> list[Path]:
    """Writes the pictures of all results in `files`; returns their paths. Raises UserError, DiskFull."""
    reduces: list[AllReduce] = []
    decodes: list[Decode] = []
    for path in files:
        more_reduces, more_decodes = load(path)
        reduces += more_reduces
        decodes += more_decodes
    try:
        from tools.network_plots.pictures import draw_allreduces, draw_decodes
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise UserError("drawing needs matplotlib: pip install 'tpiedge[plot]'") from None
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: make it, or give another one with --out")
    drawn = [*draw_allreduces(reduces, folder), *draw_decodes(decodes, folder)]
    if not drawn:
        raise UserError(
            "nothing to draw: no two settings differ in devices, cores, bandwidth or latency alone"
        )
    return drawn


if __name__ == "__main__":
    sys.exit(main())
