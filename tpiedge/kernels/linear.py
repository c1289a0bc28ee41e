"""Products of activations with weights: T tokens, I input features, O output features, R rows of the stored weight.

In native code, a token's bits depend neither on other tokens nor on the number of threads. In torch they may depend on
both. INT8 multiplies quantised matrices by native code only; F32 and BF16 dequantise tiles of them.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.library import (
    MAX_PRODUCTS,
    NATIVE_TOKENS,
    Pool,
    check_f32,
    pack_matrix,
    pack_panels,
    pack_row_parallel,
)
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.shared_library import KernelLibrary, kernel_library


class Arithmetic(StrEnum):
    """BF16 rounds activations to bf16; sums are f32. INT8 quantises activations; with unquantised weights it equals
    F32."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"


class Linear:
    """Multiplies with `threads` threads, including the caller's. Concurrent calls wait for each other. Without
    `library`, quantised matrices raise ValueError in INT8. Products may raise MemoryError."""

    def __init__(self, arithmetic: Arithmetic, threads: int, library: KernelLibrary | None) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.arithmetic = arithmetic
        self.threads = threads
        #: The native kernels; None if torch computes alone.
        self.pool = Pool(library, threads) if library else None

    @classmethod
    def create(cls, arithmetic: Arithmetic, threads: int) -> Self:
        """Uses native kernels if this computer has them."""
        return cls(arithmetic, threads, kernel_library())

    def pool_of(self, tokens: int) -> Pool | None:
        """Returns the native threads if they multiply `tokens` tokens, else None."""
        return self.pool if tokens <= NATIVE_TOKENS else None

    def project(self, x_TI: Tensor, w_RI: Weight) -> Tensor:
        """Returns x @ w.T, contiguous f32 [T, R]. `w_RI` is column-parallel."""
        return self.project_many(x_TI, (w_RI,))[0]

    def project_into(self, x_TI: Tensor, w_RI: Weight, y_TR: Tensor) -> None:
        """Writes x @ w.T to `y_TR`, f32, whose rows may be strided."""
        if self.pool is None or isinstance(w_RI, Tensor) or self.arithmetic is not Arithmetic.INT8:
            y_TR.copy_(self.project(x_TI, w_RI))
            return
        check_weight(w_RI, input_dim=1)
        check_activations(x_TI, w_RI.cols)
        check_f32("room for outputs", y_TR, (len(x_TI), w_RI.rows), contiguous=False)
        if y_TR.stride(1) != 1:
            raise ValueError(f"room for outputs has strides {y_TR.stride()}")
        self._project_panels(self.pool, x_TI, [pack_panels(w_RI, y_TR.data_ptr(), None, y_TR.stride(0))])

    def project_many(self, x_TI: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
        """Returns x @ w.T for each weight. At most MAX_PRODUCTS are allowed, all tensors or all PanelMatrix."""
        if len(weights) > MAX_PRODUCTS:
            raise ValueError(f"{len(weights)} weights at once, more than {MAX_PRODUCTS}")
        for w_RI in weights:
            check_weight(w_RI, input_dim=1)
            check_activations(x_TI, w_RI.shape[1])
        matrices = [w for w in weights if isinstance(w, Tensor)]
        panels = [w for w in weights if isinstance(w, PanelMatrix)]
        if panels and self.arithmetic is not Arithmetic.INT8:
            return [_by_tiles(x_TI, w, self.project) for w in panels]
        pool = self._native_pool() if panels else self.pool_of(len(x_TI))
        if pool is None:
            return [_multiply_by_torch(x_TI, w, self.arithmetic, transposed=True) for w in matrices]
        outputs = [torch.empty((len(x_TI), w.shape[0])) for w in weights]
        if panels:
            packed = [pack_panels(w, y.data_ptr()) for w, y in zip(panels, outputs, strict=True)]
            self._project_panels(pool, x_TI, packed)
        else:
            rows = zip(matrices, outputs, strict=True)
            of_matrices = b"".join(pack_matrix(w, y.data_ptr(), y.shape[1]) for w, y in rows)
            x_TI = self._input(x_TI)
            pool.call("tpiedge_project", x_TI.data_ptr(), *x_TI.shape, of_matrices, len(matrices))
        return outputs

    def contract(self, x_TR: Tensor, w_RO: Weight, grid: Grid | None = None) -> Tensor:
        """Returns x @ w, contiguous [T, O], for a row-parallel `w_RO`. The result is f32, or, in INT8 with quantised
        weights, integers in units of 2**grid.exponent."""
        check_weight(w_RO, input_dim=0)
        check_activations(x_TR, w_RO.shape[0])
        if isinstance(w_RO, PanelMatrix):
            if self.arithmetic is Arithmetic.INT8:
                return self._contract_panels(x_TR, w_RO, grid)
            return _by_tiles(x_TR, w_RO, self.contract)
        pool = self.pool_of(len(x_TR))
        if pool is None:
            return _multiply_by_torch(x_TR, w_RO, self.arithmetic, transposed=False)
        (rows, cols), x_TR = w_RO.shape, self._input(x_TR)
        y_TO = torch.empty((len(x_TR), cols))
        packed = pack_matrix(w_RO, y_TO.data_ptr(), rows)
        pool.call("tpiedge_contract", x_TR.data_ptr(), packed, len(x_TR), cols)
        return y_TO

    def close(self) -> None:
        """Ends the native threads. Later products of f32 and bf16 matrices use torch. Idempotent."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _project_panels(self, pool: Pool, x_TI: Tensor, packed: Sequence[bytes]) -> None:
        x_TI = x_TI.contiguous()
        pool.call("tpiedge_panels_project", x_TI.data_ptr(), len(x_TI), b"".join(packed), len(packed))

    def _contract_panels(self, x_TR: Tensor, w: PanelMatrix, grid: Grid | None) -> Tensor:
        if grid is None:
            raise ValueError("the sums of a quantised matrix need a grid")
        pool, x_TR = self._native_pool(), x_TR.contiguous()

        def multiply(sums_TO: Tensor, wide: bool) -> bool:
            packed = pack_row_parallel(w, grid.exponent, grid.most, sums_TO.data_ptr())
            return pool.call("tpiedge_panels_contract", x_TR.data_ptr(), len(x_TR), packed, wide)

        return sums_of((len(x_TR), w.cols), multiply)

    def _native_pool(self) -> Pool:
        if self.pool is None:
            raise ValueError("quantised matrices need the native kernels in int8")
        return self.pool

    def _input(self, x: Tensor) -> Tensor:
        if self.arithmetic is Arithmetic.BF16:
            x = x.bfloat16().float()
        return x.contiguous()


def check_activations(x: Tensor, features: int) -> None:
    check_f32("activations", x, (*x.shape[:1], features), contiguous=False)


def check_weight(w: Weight, input_dim: int) -> None:
    """Raises ValueError for unusable weights. `input_dim`: 1 if column-parallel, 0 if row-parallel."""
    if isinstance(w, PanelMatrix):
        if w.transposed is not (input_dim == 0):
            raise ValueError(
                f"a quantised matrix of {list(w.shape)} is {'row' if w.transposed else 'column'}-parallel"
            )
        if not w.data_B.is_cpu:
            raise ValueError(f"weights are on {w.data_B.device}, not in main memory")
        return
    if w.dim() != 2 or (w.dtype is not torch.float32 and w.dtype is not torch.bfloat16):
        raise ValueError(f"weights are {list(w.shape)} {w.dtype}, not a matrix in f32 or bf16")
    stride, step = w.stride()
    if step != 1 or stride < w.shape[1]:
        raise ValueError(f"weights of shape {list(w.shape)} have strides {w.stride()}, not (>= columns, 1)")
    if not w.is_cpu:
        raise ValueError(f"weights are on {w.device}, not in main memory")


def _by_tiles(x: Tensor, w: PanelMatrix, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    y = torch.zeros(len(x), w.cols if w.transposed else w.rows)
    for outputs, tile in w.tiles():
        y[:, outputs] = multiply(x, tile)
    return y


def _multiply_by_torch(x_TI: Tensor, w: Tensor, arithmetic: Arithmetic, *, transposed: bool) -> Tensor:
    w_IO = w.t() if transposed else w
    if arithmetic is Arithmetic.BF16:
        if w.dtype is torch.bfloat16:
            return torch.mm(x_TI.bfloat16(), w_IO).float()
        x_TI = x_TI.bfloat16().float()
    if w.dtype is torch.float32:
        return torch.mm(x_TI, w_IO)
    y_TO = x_TI.new_zeros((len(x_TI), w_IO.shape[1]))
    # Weights in bf16 are widened by tiles of rows, so that a block never exists twice in memory.
    step = max(1, min(len(w), (1 << 20) // max(1, w.shape[1])))
    scratch = w.new_empty((step, w.shape[1]), dtype=torch.float32)
    for start in range(0, len(w), step):
        rows = slice(start, min(start + step, len(w)))
        tile = scratch[: rows.stop - start].copy_(w[rows])
        if transposed:
            torch.mm(x_TI, tile.t(), out=y_TO[:, rows])
        else:
            y_TO.addmm_(x_TI[:, rows], tile)
    return y_TO
