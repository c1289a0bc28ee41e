"""Shares as both sides of a transfer know them."""

import json
import os
import subprocess
from pathlib import Path

from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import ShardCopy, ranges_nbytes
from tpiedge.pack.share import NodeShare


def ended(process: subprocess.Popen[str]) -> dict:
    out, _ = process.communicate(timeout=110)
    assert process.returncode == 0, out
    return json.loads(out)


def share_bytes(pack: Pack, share: NodeShare) -> int:
    return sum(pack.share_bytes(layer, share) for layer in range(pack.num_layers))


def held_bytes(copy: ShardCopy, share: NodeShare) -> int:
    """Bytes of the share that are there and verified."""
    return share_bytes(copy.pack, share) - ranges_nbytes(copy.missing(share))


def data_extents(path: Path) -> list[tuple[int, int]]:
    """(start, end) of what is not a hole."""
    found, at = [], 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            found.append((start, at))
    return found


def check_equal(source: Pack, copy: Pack, share: NodeShare) -> None:
    """The share's ranges are the source's byte for byte, and nothing else is filled."""
    for layer in range(source.num_layers):
        mine = [(i.offset, i.offset + i.length) for i in source.share_ranges(layer, share)]
        here, there = copy.blob_path(layer).read_bytes(), source.blob_path(layer).read_bytes()
        assert len(here) == len(there)
        assert all(here[start:end] == there[start:end] for start, end in mine)
        filled = data_extents(copy.blob_path(layer))
        assert sum(end - start for start, end in filled) == sum(end - start for start, end in mine)
    for key in ("embedding", "head"):
        assert data_extents(copy.blob_path(key)) == []
