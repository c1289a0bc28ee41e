"""Matrices in slices: for collectives in which every rank sums a part of the whole."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import is_finite
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Slice
from tpiedge.wire.tensors import INT8_GROUP, TensorHeader

Travelling = tuple[TensorHeader, Buffer]
"""A slice as it travels: its header and its bytes."""


def cut(array: Summable, count: int) -> list[Summable]:
    """Views of `count` runs of units, as equal as can be, each a matrix of a unit per row; some may be empty.

    A unit is a group of a row where groups fill the rows, else a row: so a cut changes no rounding.
    """
    rows, columns = array.shape
    unit = columns if columns % INT8_GROUP else INT8_GROUP
    units = rows * columns // unit
    matrix = array.reshape(units, unit)
    return [matrix[at * units // count : (at + 1) * units // count] for at in range(count)]


def column_ranges(columns: int, count: int) -> list[slice]:
    """`count` runs of the columns, of whole groups but for the last, as equal as such can be; some may be empty.

    So a cut changes no rounding, and where a column belongs does not depend on the number of rows.
    """
    groups = -(-columns // INT8_GROUP)
    bounds = [min(columns, at * groups // count * INT8_GROUP) for at in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def travelling(job: Job, part: Summable) -> Travelling:
    return job.codec.header(part), job.codec.encode(part)


def send_slice(
    channel: PeerChannel, job: Job, hop: int, slice_: Travelling | None, to: Sequence[int]
) -> None:
    """`slice_`: None where this rank has nothing to add. Raises PeerLost, ProtocolError."""
    tag = job.tag
    header, tensors = (None, ()) if slice_ is None else (slice_[0], (slice_[1],))
    flags = CANCEL if job.cancel else 0
    message = Slice(channel.epoch, tag.step, tag.block, tag.chunk, flags, hop, channel.rank, header)
    channel.send(message, tensors, to, job.what)


def check_slices(slices: Sequence[Summable], owners: Sequence[int], what: object) -> None:
    """ProtocolError where a slice of the sum is not finite; `owners`: who summed each. Whose part was at fault only the
    owner could tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = [is_finite(part) for part in slices]
    for owner, fine in zip(owners, finite, strict=True):
        if not fine:
            raise ProtocolError(
                f"the sum of {what} is not finite in the slice that node {owner} added up; "
                "run it with --collective star to learn which node is at fault"
            )
