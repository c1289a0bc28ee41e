"""Disks that fail and files that are cut while weights are read: file and offset are named, no number is wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.errors import ReadFault, UserError
from tpiedge.memory.arena import Arena, Extent
from tpiedge.memory.embedding import EmbeddingTable
from tpiedge.memory.reader import DirectFile, DirectReader, ReadJob
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share

MakePack = Callable[..., Pack]
EVERYTHING = NodeShare(Share(0, 6), Share(0, 2))

#: A regular file whose first byte cannot be read: nothing is mapped there.
BROKEN = Path("/proc/self/mem")


def test_a_disk_that_really_fails_names_file_and_offset() -> None:
    arena = Arena(8192)
    into = arena.buffer(Extent(0, 8192))
    words = f"at offset 0 of {BROKEN}: Input/output error"
    with (
        DirectReader(1) as reader,
        DirectFile(BROKEN) as file,
        pytest.raises(ReadFault, match=words) as caught,
    ):
        reader.run([ReadJob(file, 0, into, lambda data: None)])
    assert (caught.value.path, caught.value.offset) == (BROKEN, 0)


def test_weights_on_a_disk_that_really_fails(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.blob_path(1)
    path.unlink()
    path.symlink_to(BROKEN)
    with pytest.raises(ReadFault, match=f"at offset 0 of {path}: Input/output error"):
        NodeWeights(pack, EVERYTHING, rank0=False)


def test_a_blob_deleted_before_it_is_loaded_is_named(make_pack: MakePack) -> None:
    pack = make_pack()
    pack.blob_path(1).unlink()
    with pytest.raises(UserError, match=rf"cannot open .*{pack.blob_id(1)}: No such file"):
        NodeWeights(pack, EVERYTHING, rank0=False)


@pytest.mark.parametrize("act", ["cut", "emptied", "deleted"])
def test_an_embedding_that_loses_its_file_while_it_serves(make_pack: MakePack, act: str) -> None:
    """Rows are read from disk for every prompt. A deleted file lives on as long as it is open."""
    pack = make_pack()
    path, layout = pack.blob_path("embedding"), pack.layout("embedding").matrix("embedding")
    with DirectReader(1) as reader:
        table = EmbeddingTable(pack, reader)
        expected = table.rows([0, 120])
        if act == "deleted":
            path.unlink()
            assert table.rows([0, 120]).equal(expected)
        else:
            kept = layout.row_offset(120) + 16 if act == "cut" else 0
            os.truncate(path, kept)
            with pytest.raises(ReadFault, match="the file ends before") as caught:
                table.rows([0, 120])
            assert (caught.value.path, caught.value.offset) == (path, kept)
        table.close()
