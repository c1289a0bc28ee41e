import os
from pathlib import Path

import pytest

from tests.unit.memory.conftest import EVERYTHING, MakePack
from tpiedge.errors import ReadFault
from tpiedge.memory.loader import EmbeddingTable
from tpiedge.memory.weights import NodeWeights

#: A regular file whose first byte cannot be read: nothing is mapped there.
BROKEN = Path("/proc/self/mem")


def test_weights_on_a_disk_that_really_fails(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.blob_path(1)
    path.unlink()
    path.symlink_to(BROKEN)
    with pytest.raises(ReadFault, match=f"at offset 0 of {path}: Input/output error"):
        NodeWeights(pack, EVERYTHING, rank0=False)


@pytest.mark.parametrize("act", ["cut", "emptied", "deleted"])
def test_an_embedding_that_loses_its_file_while_it_serves(make_pack: MakePack, act: str) -> None:
    """Rows are read from disk for every prompt. A deleted file lives on as long as it is open."""
    pack = make_pack()
    path, layout = pack.blob_path("embedding"), pack.layout("embedding").matrix("embedding")
    table = EmbeddingTable(pack)
    expected = table.rows([0, 120])
    if act == "deleted":
        path.unlink()
        assert table.rows([0, 120]).equal(expected)
    else:
        kept = layout.row_place(120)[0] + 16 if act == "cut" else 0
        os.truncate(path, kept)
        with pytest.raises(ReadFault, match="the file ends before") as caught:
            table.rows([0, 120])
        assert f"at offset {kept} of {path}" in str(caught.value)
    table.close()
