"""How large anything on the wire may be.

Every bound here is checked twice: by the sender before it sends, by the receiver before it believes.
"""

from tpiedge.units import KIB, MIB

MAX_TENSOR_HEADER = 64 * KIB
"""Encoded message on the tensor plane (without its tensor frames)."""

MAX_CONTROL_HEADER = 1 * MIB + 640 * KIB
"""Encoded message on the control plane: a request with MAX_PROMPT_TOKENS, MAX_ANSWER_TOKENS of its answer and a
grammar of MAX_GRAMMAR fits."""

MAX_TENSOR_BYTES = 32 * MIB
"""One tensor frame. A chunk's is 1 MiB, or one row of hidden states where that is more; twice as much of wide
integers."""

MAX_FILE_CHUNK = 4 * MIB
"""Bytes of a file in one frame of the files plane."""

MAX_ARRAY = 128
"""Elements of one MessagePack array."""

MAX_BLOB = 256 * KIB
"""Opaque bytes inside a message."""

MAX_NODES = MAX_ARRAY
MAX_LAYERS = 1024
MAX_SEGMENTS = MAX_ARRAY
MAX_PAGES = 6000
"""Pages of the KV cache that one message names, all its lists together: with the segments they fit a header."""
MAX_SEQUENCES = 64
"""Requests that a cluster answers at once."""
MAX_SPANS = 4096
"""Of each kind, of one step: a model of a hundred layers has a few hundred."""

MAX_MOVES = 1024
"""Pairs of a rank and a KV head that one message names."""

MAX_DIMENSIONS = 4
MAX_HIDDEN = 131_072
"""Numbers of a position's hidden state; no model has more (`model/config.py`)."""
MAX_PROMPT_TOKENS = 131_072
MAX_ANSWER_TOKENS = 131_072
"""Of an answer that another epoch can be asked to go on with."""
MAX_TEXT = 4096
MAX_GRAMMAR = 60_000
"""Characters of the grammar of an answer."""
