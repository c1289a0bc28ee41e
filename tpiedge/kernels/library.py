"""The native kernels' threads, and calling the kernels with tensors."""

import ctypes
import struct
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import ISAS, MAX_HEAD_WIDTH, KernelLibrary

__all__ = ["MAX_HEAD_WIDTH", "MAX_PRODUCTS", "Pool", "pack_panels", "pack_row_parallel"]

# The most products of one call of Pool.project (native/interface.cpp).
MAX_PRODUCTS = 4

_F32_BYTES = 4
# One weight of a product: w, y, is bf16, stride, rows.
_WEIGHT = struct.Struct("=5q")
# A quantised one: data, y, bits, bytes from one unit to the next, rows, cols, rows of a unit, bias; exponent and most
# of the grid.
_PANELS = struct.Struct("=11q")
# As the statuses in native/interface.h.
_NO_MEMORY, _TOO_LARGE = 1, 2
_NO_WINDOW = 1 << 62


class Pool:
    """Native threads that compute together with the caller, and what else is native. Calls of several
    threads wait for each other where they share anything.

    Products, and blocks of them, raise MemoryError where the system has no memory for what they keep meanwhile.

    The methods read and write raw memory: the modules of this package check what they pass on. All f32 tensors
    are contiguous where no stride is named.
    """

    def __init__(self, library: KernelLibrary, threads: int) -> None:
        dll = library.dll
        handle = dll.tpiedge_open(threads, ISAS.index(library.isa))
        if not handle:
            raise RuntimeError(f"cannot start {threads - 1} threads for the native kernels")
        self._dll = dll
        self._open: int | None = handle
        self._finalizer = weakref.finalize(self, dll.tpiedge_close, handle)

    def close(self) -> None:
        """End the threads. May be called again."""
        self._open = None
        self._finalizer()

    @property
    def _handle(self) -> int:
        if self._open is None:
            raise RuntimeError("the native threads were closed")
        return self._open

    def project(self, x_TI: Tensor, weights: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """y = x @ w.T of each weight [R, I] (rows at a stride, f32 or bf16), up to MAX_PRODUCTS."""
        packed = b"".join(_weight(w, y.data_ptr(), y.shape[1]) for w, y in zip(weights, outputs, strict=True))
        tokens, cols = x_TI.shape
        self._dll.tpiedge_project(self._handle, x_TI.data_ptr(), tokens, cols, packed, len(weights))

    def contract(self, x_TR: Tensor, w_RO: Tensor, y_TO: Tensor) -> None:
        """y = x @ w."""
        rows, cols = w_RO.shape
        packed = _weight(w_RO, y_TO.data_ptr(), rows)
        _complete(self._dll.tpiedge_contract(self._handle, x_TR.data_ptr(), packed, x_TR.shape[0], cols))

    def ffn(
        self,
        x_TH: Tensor,
        norm_H: Tensor,
        eps: float,
        weights: tuple[Tensor, Tensor, Tensor],
        rounds: bool,
        y_TO: Tensor,
    ) -> None:
        """Norm, gate and up, SwiGLU, down; `rounds`: the products' inputs to bf16."""
        gate_FH, up_FH, down_FO = weights
        tokens, hidden = x_TH.shape
        rows, cols = down_FO.shape
        scratch = torch.empty(tokens * (hidden + 2 * rows))
        gate = scratch.data_ptr() + _F32_BYTES * tokens * hidden
        packed = (
            _weight(gate_FH, gate, rows)
            + _weight(up_FH, gate + _F32_BYTES * tokens * rows, rows)
            + _weight(down_FO, y_TO.data_ptr(), rows)
        )
        _complete(
            self._dll.tpiedge_ffn(
                self._handle,
                x_TH.data_ptr(),
                tokens,
                hidden,
                norm_H.data_ptr(),
                eps,
                rounds,
                packed,
                cols,
                scratch.data_ptr(),
            )
        )

    def project_panels(self, x_TI: Tensor, weights: Sequence[PanelMatrix], outputs: Sequence[Tensor]) -> None:
        """y = x @ w.T of each column-parallel matrix, up to MAX_PRODUCTS, for any number of tokens; rows of y at any
        stride."""
        packed = b"".join(
            pack_panels(w, y.data_ptr(), y_stride=y.stride(0)) for w, y in zip(weights, outputs, strict=True)
        )
        _complete(
            self._dll.tpiedge_panels_project(
                self._handle, x_TI.data_ptr(), x_TI.shape[0], packed, len(weights)
            )
        )

    # The sums of row-parallel quantised matrices, as grid.py describes them. False where they may be too large for
    # int32 and `wide` was not asked for: then `y`, int64 where `wide`, holds nothing of use.

    def contract_panels(self, packed: bytes, x: int, tokens: int, wide: bool) -> bool:
        """y = x @ w of a matrix as `pack_row_parallel` packs it, for any number of tokens."""
        return _fits(self._dll.tpiedge_panels_contract(self._handle, x, tokens, packed, wide))

    def ffn_panels(
        self, packed: bytes, x: int, y: int, tokens: int, norm: int, eps: float, scratch: int, wide: bool
    ) -> bool:
        """Norm, gate and up, SwiGLU, down, as ffn.py packs them; addresses of f32, `y` of sums."""
        return _fits(
            self._dll.tpiedge_panels_ffn(self._handle, packed, x, y, tokens, norm, eps, scratch, wide)
        )

    def attention_panels(
        self,
        packed: bytes,
        x: int,
        y: int,
        spans: bytes,
        count: int,
        cos: int,
        sin: int,
        scratch: int,
        wide: bool,
    ) -> bool:
        """An attention block as attention_block.py packs it, for `count` spans as kv_pages.py does; addresses of f32,
        `y` of sums."""
        return _fits(
            self._dll.tpiedge_panels_attention(
                self._handle, packed, x, y, spans, count, cos, sin, scratch, wide
            )
        )

    def add_sums(self, x: int, sums: int, count: int, exponent: int, wide: bool) -> None:
        """x += sums in steps of 2**exponent, rounded to f32 once; int64 where `wide`, else int32."""
        self._dll.tpiedge_add_sums(x, sums, count, exponent, wide)

    def stack_panels(
        self, packed: bytes, layers: int, x: int, spans: bytes, count: int, cos: int, sin: int, scratch: int
    ) -> tuple[float, float]:
        """All layers as stack.py packs them, for `count` spans likewise; the seconds of attention and of FFN blocks."""
        seconds = (ctypes.c_double * 2)()
        address = ctypes.addressof(seconds)
        _complete(
            self._dll.tpiedge_panels_stack(
                self._handle, packed, layers, x, spans, count, cos, sin, scratch, address
            )
        )
        return seconds[0], seconds[1]

    def rms_norm(self, x_TNd: Tensor, weight_d: Tensor, eps: float, y_TNd: Tensor) -> None:
        """x may be strided but in its last dimension."""
        self._dll.tpiedge_rms_norm(self._handle, *_rows(x_TNd, y_TNd), weight_d.data_ptr(), eps)

    def rope(self, x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor, y_TNd: Tensor) -> None:
        """x may be strided but in its last dimension."""
        self._dll.tpiedge_rope(
            self._handle, *_rows(x_TNd, y_TNd), cos_Tr.data_ptr(), sin_Tr.data_ptr(), cos_Tr.shape[1]
        )

    def swiglu(self, gate_TF: Tensor, up_TF: Tensor, y_TF: Tensor) -> None:
        """y = silu(gate) * up."""
        self._dll.tpiedge_swiglu(
            self._handle, gate_TF.data_ptr(), up_TF.data_ptr(), y_TF.data_ptr(), y_TF.numel()
        )

    def kv_append(self, k_TKd: Tensor, v_TKd: Tensor, layout: bytes, spans: bytes, count: int) -> None:
        """Keys and values, which may be strided but in their last dimension, to the pages of `count` spans; `layout`
        and `spans` as kv_pages.py packs them."""
        self._dll.tpiedge_kv_append(
            self._handle,
            k_TKd.data_ptr(),
            v_TKd.data_ptr(),
            layout,
            spans,
            count,
            *k_TKd.stride()[:2],
            *v_TKd.stride()[:2],
        )

    def attention(
        self,
        q_TNd: Tensor,
        y_TNd: Tensor,
        layout: bytes,
        spans: bytes,
        count: int,
        head_start: bytes,
        window: int | None,
        scale: float,
    ) -> None:
        """Of the queries of `count` spans, likewise; `head_start`: K + 1 native int64."""
        self._dll.tpiedge_attention(
            self._handle,
            q_TNd.data_ptr(),
            y_TNd.data_ptr(),
            layout,
            spans,
            count,
            head_start,
            q_TNd.shape[1],
            _NO_WINDOW if window is None else window,
            scale,
        )


def _complete(status: int) -> None:
    """What a call returned that keeps numbers of its own meanwhile."""
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the native kernels' intermediate results")


def _fits(status: int) -> bool:
    _complete(status)
    return status != _TOO_LARGE


def _weight(w: Tensor, y: int, rows: int) -> bytes:
    return _WEIGHT.pack(w.data_ptr(), y, w.dtype is torch.bfloat16, w.stride(0), rows)


def pack_panels(
    w: PanelMatrix, y: int = 0, bias_R: Tensor | None = None, y_stride: int | None = None
) -> bytes:
    """A column-parallel matrix as the native kernels take it; `y`: where its products go, unless the call says so, rows
    `y_stride` floats apart if not close together; `bias_R`, contiguous f32, is added to them and must stay where it
    is."""
    return _packed(
        w, y, 0 if bias_R is None else bias_R.data_ptr(), 0, 0, w.rows if y_stride is None else y_stride
    )


def pack_row_parallel(w: PanelMatrix, exponent: int, most: int, y: int = 0) -> bytes:
    """A row-parallel matrix with its grid, likewise."""
    return _packed(w, y, 0, exponent, most, 0)


def _packed(w: PanelMatrix, y: int, bias: int, exponent: int, most: int, y_stride: int) -> bytes:
    data = w.data_B.data_ptr()
    return _PANELS.pack(
        data, y, w.bits, w.unit_nbytes, w.rows, w.cols, w.rows_per_unit, bias, exponent, most, y_stride
    )


def _rows(x_TNd: Tensor, y_TNd: Tensor) -> tuple[int, ...]:
    token_stride, head_stride, _ = x_TNd.stride()
    tokens, heads, width = x_TNd.shape
    return x_TNd.data_ptr(), y_TNd.data_ptr(), token_stride, head_stride, tokens, heads, width
