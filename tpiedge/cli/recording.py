"""`--trace FILE`: what every node of a local cluster did when, in one file once the cluster has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tpiedge.errors import TpiedgeError
from tpiedge.tracing.collection import Collection, Joined
from tpiedge.units import counted


@contextmanager
def recording(path: Path | None, nodes: int) -> Iterator[tuple[Path, ...]]:
    """Where each node is to write its part, by rank; nowhere without a `path`. The parts become the file at the end
    of the block, also where it ends with an error.

    Raises UserError or DiskFull if the file cannot be written: before the block where that can be known. Never in place
    of the block's own error.
    """
    if path is None:
        yield ()
        return
    with Collection(path) as collection:
        try:
            yield tuple(collection.part(rank) for rank in range(nodes))
        except BaseException:
            _rescue(path, collection, nodes)
            raise
        _tell(path, collection.join(nodes))


def _rescue(path: Path, collection: Collection, nodes: int) -> None:
    try:
        joined = collection.join(nodes)
    except TpiedgeError as error:
        click.echo(f"trace: {error}", err=True)
        return
    if joined.events:
        _tell(path, joined)


def _tell(path: Path, joined: Joined) -> None:
    written = f"{counted(joined.events, 'event')} in {path}" if joined.events else "nothing was recorded"
    lost = f"; {counted(joined.dropped, 'later one')} had no room" if joined.dropped else ""
    absent = "".join(f"; node {rank} left none" for rank in joined.missing)
    click.echo(f"trace: {written}{lost}{absent}", err=True)
