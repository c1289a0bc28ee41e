"""How large anything on the wire may be.

Every bound here is checked twice: by the sender before it sends, by the receiver before it believes.
"""

from tpiedge.units import KIB, MIB

__all__ = [
    "MAX_ARRAY",
    "MAX_BLOB",
    "MAX_CONTROL_HEADER",
    "MAX_DIMENSIONS",
    "MAX_FILE_CHUNK",
    "MAX_NODES",
    "MAX_PROMPT_TOKENS",
    "MAX_SEGMENTS",
    "MAX_TENSOR_BYTES",
    "MAX_TENSOR_HEADER",
    "MAX_TEXT",
]

MAX_TENSOR_HEADER = 64 * KIB
"""Encoded message on the tensor plane (without its tensor frames)."""

MAX_CONTROL_HEADER = 1 * MIB
"""Encoded message on the control plane: a request with MAX_PROMPT_TOKENS fits."""

MAX_TENSOR_BYTES = 64 * MIB
"""One tensor frame."""

MAX_FILE_CHUNK = 4 * MIB
"""Bytes of a file in one frame of the files plane."""

MAX_ARRAY = 128
"""Elements of one MessagePack array. The parser allocates an array before it has seen its elements, and nests
up to 1024 deep: this keeps the worst a hostile message can make it allocate at about 1 MB."""

MAX_BLOB = 256 * KIB
"""Opaque bytes inside a message."""

MAX_NODES = MAX_ARRAY
MAX_SEGMENTS = MAX_ARRAY
MAX_DIMENSIONS = 4
MAX_PROMPT_TOKENS = 131_072
MAX_TEXT = 4096
