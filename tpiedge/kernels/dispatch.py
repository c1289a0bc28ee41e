"""The native kernels or torch: the one place that says which of them computes an operand.

Without a pool (`Linear.pool` is None: the native kernels are not built, switched off or closed) torch computes what is
in f32 and bf16, and nothing computes what is quantised. With one, the native kernels compute everything but two cases:

- products of more than NATIVE_TOKENS tokens with f32 and bf16 matrices, at which torch is faster;
- attention over f32 and bf16 with heads wider than MAX_HEAD_WIDTH, for which the native kernels have no room.

Norm, rotary positions, SwiGLU and the quantised KV cache know no such case: a pool is all that they ask for. What
needs no pool (checksums, the quantiser) asks `shared_library.kernel_library`.

A function returns the pool that is to compute, or None where torch is. They run once per product: keep them cheap.
"""

from typing import Final

from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

#: Up to this many tokens the native kernels multiply f32 and bf16 matrices; torch's products are faster for more.
NATIVE_TOKENS: Final = 16


def for_product(pool: Pool | None, w: Weight, tokens: int) -> Pool | None:
    """For the product of `tokens` tokens with `w`: native for quantised matrices whatever the number of tokens."""
    return pool if tokens <= NATIVE_TOKENS or isinstance(w, PanelMatrix) else None


def for_attention(pool: Pool | None, head_width: int) -> Pool | None:
    """For attention with heads of `head_width` columns, whatever the number of tokens."""
    return pool if head_width <= MAX_HEAD_WIDTH else None
