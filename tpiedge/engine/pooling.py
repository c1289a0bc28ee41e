"""An embedding: one vector made of the hidden states of a prompt, as they come step by step."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.errors import UserError


class MeanState:
    """The mean of hidden states of `width` numbers. It is summed in f64, position by position: its bits do not depend
    on how many come at a time."""

    def __init__(self, width: int) -> None:
        self._total_H: NDArray[np.float64] = np.zeros(width)
        self.count = 0
        """States so far."""

    def add(self, h_MH: Tensor) -> None:
        """Takes the next states."""
        for row_H in h_MH.numpy():
            self._total_H += row_H
        self.count += len(h_MH)

    @property
    def values(self) -> tuple[float, ...]:
        """The mean; to be asked for once a state is there. Raises UserError where it has what is no f32."""
        mean_H = self._total_H / self.count
        if not (np.abs(mean_H) <= np.finfo(np.float32).max).all():
            raise UserError("the model makes an embedding with a number that is not finite: check its files")
        return tuple(mean_H.tolist())
