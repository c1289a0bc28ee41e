"""Products of activations with weights: the one door to them for the forward pass.

T tokens, I input features, O output features, R rows of the stored weight.

dispatch.py says which products the native kernels compute; there a row of the result has the same bits whatever else
is in the step and however many threads work. Quantised matrices are always multiplied in INT8 arithmetic, and by the
native kernels alone.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from tpiedge.kernels import torch_linear
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.dispatch import for_product
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.library import MAX_PRODUCTS, Pool, pack_row_parallel
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.shared_library import KernelLibrary, kernel_library


class Linear:
    """Computes with `threads` native threads (the caller is one of them); `close` ends the others.

    Calls of several threads wait for each other. MemoryError where the system has no memory for what a product keeps
    meanwhile. `library=None` computes with torch alone, and refuses quantised matrices with ValueError.
    """

    def __init__(self, arithmetic: Arithmetic, threads: int, library: KernelLibrary | None) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.arithmetic = arithmetic
        self.threads = threads
        self._pool = Pool(library, threads) if library else None

    @classmethod
    def create(cls, arithmetic: Arithmetic, threads: int) -> Self:
        """With the native kernels where they are built and not switched off (TPIEDGE_NATIVE=0)."""
        return cls(arithmetic, threads, kernel_library())

    @property
    def native(self) -> bool:
        """Whether the native kernels compute (products with f32 and bf16 weights: of few tokens)."""
        return self._pool is not None

    @property
    def pool(self) -> Pool | None:
        """The native kernels, for the operations that are not products; None where torch computes."""
        return self._pool

    def project(self, x_TI: Tensor, w_RI: Weight) -> Tensor:
        """x @ w.T: column-parallel matrices, one row per output feature. Returns [T, R] f32, contiguous."""
        return self.project_many(x_TI, (w_RI,))[0]

    def project_into(self, x_TI: Tensor, w_RI: Weight, y_TR: Tensor) -> None:
        """As `project`, into f32 rows that may lie at a stride: some columns of a wider result."""
        pool = for_product(self._pool, w_RI, x_TI.shape[0])
        if pool is None or isinstance(w_RI, Tensor):
            y_TR.copy_(self.project(x_TI, w_RI))
            return
        check_activations(x_TI, w_RI.shape[1])
        if y_TR.shape != (len(x_TI), w_RI.rows) or y_TR.stride(1) != 1 or y_TR.dtype is not torch.float32:
            raise ValueError(
                f"{list(y_TR.shape)} {y_TR.dtype} is no room for {len(x_TI)} rows of {w_RI.rows} outputs"
            )
        pool.project_panels(x_TI.contiguous(), (w_RI,), (y_TR,))

    def project_many(self, x_TI: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
        """x @ w.T of up to MAX_PRODUCTS weights, for one waking of the threads. A result for each."""
        if len(weights) > MAX_PRODUCTS:
            raise ValueError(f"{len(weights)} weights at once, more than {MAX_PRODUCTS}")
        for w_RI in weights:
            check_weight(w_RI, input_dim=1)
            check_activations(x_TI, w_RI.shape[1])
        panels = [w for w in weights if isinstance(w, PanelMatrix)]
        matrices = [w for w in weights if isinstance(w, Tensor)]
        of_panels = iter(self._project_panels(x_TI, panels) if panels else ())
        of_matrices = iter(self._project_matrices(x_TI, matrices) if matrices else ())
        return [next(of_panels if isinstance(w, PanelMatrix) else of_matrices) for w in weights]

    def contract(self, x_TR: Tensor, w_RO: Weight, grid: Grid | None = None) -> Tensor:
        """x @ w: row-parallel matrices, one row per input feature. Returns [T, O], contiguous: f32, or of a quantised
        matrix sums of `grid`, which it needs."""
        check_weight(w_RO, input_dim=0)
        check_activations(x_TR, w_RO.shape[0])
        if isinstance(w_RO, PanelMatrix):
            return self._contract_panels(x_TR, w_RO, grid)
        pool = for_product(self._pool, w_RO, x_TR.shape[0])
        if pool is None:
            return torch_linear.contract(x_TR, w_RO, self.arithmetic)
        y_TO = torch.empty((x_TR.shape[0], w_RO.shape[1]))
        pool.contract(self._input(x_TR), w_RO, y_TO)
        return y_TO

    def close(self) -> None:
        """End the native threads; afterwards torch computes. May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _project_matrices(self, x_TI: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        tokens = x_TI.shape[0]
        pool = for_product(self._pool, weights[0], tokens)
        if pool is None:
            return [torch_linear.project(x_TI, w_RI, self.arithmetic) for w_RI in weights]
        outputs = [torch.empty((tokens, w_RI.shape[0])) for w_RI in weights]
        pool.project(self._input(x_TI), weights, outputs)
        return outputs

    def _project_panels(self, x_TI: Tensor, weights: Sequence[PanelMatrix]) -> list[Tensor]:
        pool = self._native_pool()
        outputs = [torch.empty((x_TI.shape[0], w.rows)) for w in weights]
        pool.project_panels(x_TI.contiguous(), weights, outputs)
        return outputs

    def _contract_panels(self, x_TR: Tensor, w: PanelMatrix, grid: Grid | None) -> Tensor:
        if grid is None:
            raise ValueError("the sums of a quantised matrix need a grid")
        pool, tokens = self._native_pool(), x_TR.shape[0]
        x_TR = x_TR.contiguous()

        def multiply(sums_TO: Tensor, wide: bool) -> bool:
            packed = pack_row_parallel(w, grid.exponent, grid.most, sums_TO.data_ptr())
            return pool.contract_panels(packed, x_TR.data_ptr(), tokens, wide)

        return sums_of((tokens, w.cols), multiply)

    def _native_pool(self) -> Pool:
        if self._pool is None:
            raise ValueError("quantised matrices need the native kernels")
        return self._pool

    def _input(self, x: Tensor) -> Tensor:
        if self.arithmetic is Arithmetic.BF16:
            x = x.bfloat16().float()
        return x.contiguous()


def check_activations(x: Tensor, features: int) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    if x.dim() != 2 or x.shape[1] != features or x.dtype is not torch.float32 or not x.is_cpu:
        raise ValueError(
            f"activations are {list(x.shape)} {x.dtype} on {x.device}, not f32 [tokens, {features}] in main memory"
        )


def check_bias(bias: Tensor, outputs: int) -> None:
    """One that a native call adds."""
    if (
        bias.shape != (outputs,)
        or bias.dtype is not torch.float32
        or not (bias.is_cpu and bias.is_contiguous())
    ):
        raise ValueError(f"a bias is {list(bias.shape)} {bias.dtype}, not contiguous f32 [{outputs}]")


def check_weight(w: Weight, input_dim: int) -> None:
    """A matrix in main memory whose rows lie at a stride, or a quantised one whose inputs are that dimension."""
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
