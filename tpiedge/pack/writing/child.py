"""Packing in a process of its own, so that its memory goes back when it is done.

`python -m tpiedge.pack.writing.child` reads one line of JSON, the request, from stdin, and writes one line of JSON
per event to stdout: {"event": "progress", "done", "total"}, then either {"event": "done", "path", "nbytes",
"reused"} or {"event": "error", "kind", "message"}. It gives up and leaves nothing when stdin ends, when its
parent dies, or on SIGTERM.
"""

import contextlib
import json
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tpiedge.errors import Cancelled, InternalError, OutOfMemory, TpiedgeError, UserError
from tpiedge.lifeline import guard
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import model_spec_from_json, model_spec_to_json
from tpiedge.pack.sources.imported import AnyTensor, open_tensors, tensor_from_json, tensor_to_json
from tpiedge.pack.sources.source import TensorSource
from tpiedge.pack.specs import JSON, ModelSpec
from tpiedge.pack.storage import Storage, storage_of
from tpiedge.pack.writing.writer import write_pack

_PROGRESS_EVERY_S = 0.2
_RANDOM_SOURCE = "tpiedge.lab.random_weights:RandomSource"  # nobody who packs files imports it


@dataclass(frozen=True)
class RandomTensors:
    """Numbers from a seed, in the precision of the pack; bf16 where that is quantised."""

    seed: int


@dataclass(frozen=True)
class CheckpointTensors:
    """Numbers from files."""

    tensors: Mapping[str, AnyTensor]


@dataclass(frozen=True)
class PackRequest:
    """The arguments of `write_pack`, as they cross to the child."""

    spec: ModelSpec
    source: RandomTensors | CheckpointTensors
    precision: Precision | Storage
    out: Path
    distinct_layers: int | None = None

    def to_json(self) -> dict[str, JSON]:
        return {
            "spec": model_spec_to_json(self.spec),
            "source": _source_to_json(self.source),
            "storage": storage_of(self.precision, self.spec).to_json(),
            "out": str(self.out.absolute()),
            "distinct_layers": self.distinct_layers,
        }

    @staticmethod
    def from_json(value: Any) -> "PackRequest":
        """The parent is trusted: a malformed request is its defect, a KeyError or TypeError."""
        return PackRequest(
            spec=model_spec_from_json(value["spec"]),
            source=_source_from_json(value["source"]),
            precision=Storage.from_json(value["storage"]),
            out=Path(value["out"]),
            distinct_layers=value["distinct_layers"],
        )

    def open_source(self) -> TensorSource:
        if isinstance(self.source, CheckpointTensors):
            return open_tensors(self.source.tensors)
        stored = STORED.get(storage_of(self.precision, self.spec).layers, "BF16")
        made: TensorSource = pkgutil.resolve_name(_RANDOM_SOURCE).for_spec(
            self.source.seed, self.spec, stored
        )
        return made


def main() -> int:
    """The process. Returns the exit status of errors.py."""
    _cancel_on_signals()
    try:
        request = PackRequest.from_json(json.loads(sys.stdin.buffer.readline()))
        guard(lambda: os.kill(os.getpid(), signal.SIGTERM), signal.SIGTERM)
        done = _pack(request)
        _ignore_signals()
        _emit(done)
    except TpiedgeError as error:
        return _fail(error)
    except MemoryError:
        return _fail(OutOfMemory("memory ran out while packing: close other programs and pack again"))
    except Exception as error:
        return _fail(InternalError(f"packing failed: {type(error).__name__}: {error}; please report this"))
    return 0


def _pack(request: PackRequest) -> dict[str, JSON]:
    source = request.open_source()
    with contextlib.closing(source):
        report = write_pack(
            request.spec,
            source,
            request.precision,
            request.out,
            request.distinct_layers,
            _ProgressLines(),
        )
    return {"event": "done", "path": str(report.path), "nbytes": report.nbytes, "reused": report.reused}


class _ProgressLines:
    """Progress as events, a few per second."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now >= self._next_s:
            self._next_s = now + _PROGRESS_EVERY_S
            _emit({"event": "progress", "done": done, "total": total})


def _emit(event: Mapping[str, JSON]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _fail(error: TpiedgeError) -> int:
    _ignore_signals()
    with contextlib.suppress(OSError):
        _emit({"event": "error", "kind": type(error).__name__, "message": str(error)})
    return error.exit_code


def _cancel_on_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_cancelled)


def _raise_cancelled(number: int, frame: FrameType | None) -> None:
    del frame
    _ignore_signals()  # cleaning up must not be cancelled in its turn
    raise Cancelled(f"packing was ended by {signal.Signals(number).name}")


def _ignore_signals() -> None:
    # Not SIG_IGN: for a signal that is on its way already, Python would then print a warning with a traceback.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)


def _source_to_json(source: RandomTensors | CheckpointTensors) -> JSON:
    if isinstance(source, RandomTensors):
        return {"kind": "random", "seed": source.seed}
    tensors = {name: tensor_to_json(tensor) for name, tensor in source.tensors.items()}
    return {"kind": "checkpoint", "tensors": tensors}


def _source_from_json(value: Any) -> RandomTensors | CheckpointTensors:
    if value["kind"] == "random":
        return RandomTensors(int(value["seed"]))
    if value["kind"] != "checkpoint":
        raise UserError(f"unknown source of tensors {value['kind']!r}")
    return CheckpointTensors({name: tensor_from_json(one) for name, one in value["tensors"].items()})


if __name__ == "__main__":
    sys.exit(main())
