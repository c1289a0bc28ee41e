"""Messages of the files plane: a worker asks for bytes of a pack, the master answers.

`epoch` is a number that the worker draws for one transfer, `number` counts its requests: an answer says which
request it belongs to, and whatever belongs to no open request is dropped.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tpiedge.wire.fields import U32, U64, Message, Text
from tpiedge.wire.tensors import TensorHeader

Digest = Annotated[str, Meta(max_length=64)]
"""A sha256 in hexadecimal digits, or empty."""

FilePart = Literal["manifest", "hashes", "blob"]
"""What is asked for: a pack's manifest, the table of hashes of one of its blobs, or the blob."""


class Fetch(Message, frozen=True):
    """Worker to master: bytes [offset, offset + length) of a file of the pack `pack` (its manifest's sha256).

    Of a manifest or a table the answer may be shorter, where it ends before.
    """

    epoch: U32
    number: U32
    pack: Digest
    part: FilePart
    blob: Digest
    offset: U64
    length: U32


class FileChunk(Message, frozen=True):
    """Master to worker: the bytes asked for, in a tensor of one dimension; the whole file has `total`."""

    epoch: U32
    number: U32
    total: U64
    tensor: TensorHeader


class FetchFailed(Message, frozen=True):
    """Master to worker: why there is no answer to a request."""

    epoch: U32
    number: U32
    message: Text
