"""Figures that cluster benchmarks print."""

import json
import statistics
from collections.abc import Mapping, Sequence


def show(found: Mapping[str, Sequence[float]], *, as_json: bool) -> None:
    """Prints the values by name, as JSON or as lines of median, minimum and maximum."""
    if as_json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})")
