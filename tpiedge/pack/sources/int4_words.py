"""How GPTQ and AWQ checkpoints store a matrix of 4-bit weights, as the libraries of these names write it.

For O outputs and I inputs in G groups of inputs, all of them row-major and little-endian:

- `scales` [G, O], f16. `qzeros` [G, O / 8], int32: eight outputs' zero points in a word.
- GPTQ: `qweight` [I / 8, O], int32: word (r, o) holds the codes of inputs 8 r + k in bits 4 k to 4 k + 3. So does a
  word of qzeros for its outputs, but each is one less than the zero point (not so in the format "gptq_v2").
- AWQ ("gemm"): `qweight` [I, O / 8], int32: word (i, c) holds the code of output 8 c + AWQ_ORDER[k] in bits 4 k to
  4 k + 3. So does a word of qzeros.
- The weight of o and i is scales[g, o] * (code - zero point), where g is i // group or, with "act order", g_idx[i].
"""

import numpy as np

from tpiedge.pack.dtypes import Array

WORD = 8
"""Codes in a word."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_words(words: Array, axis: int, order: tuple[int, ...] = tuple(range(WORD))) -> Array:
    """uint32 [a, b] -> codes uint8, eight times as many along `axis`; nibble k becomes code `order[k]` of its word."""
    shape = (words.shape[0], WORD, words.shape[1]) if axis == 0 else (*words.shape, WORD)
    codes = np.empty(shape, np.uint8)
    for nibble, place in enumerate(order):
        part = ((words >> np.uint32(4 * nibble)) & np.uint32(15)).astype(np.uint8)
        if axis == 0:
            codes[:, place] = part
        else:
            codes[:, :, place] = part
    return codes.reshape(-1, words.shape[1]) if axis == 0 else codes.reshape(words.shape[0], -1)
