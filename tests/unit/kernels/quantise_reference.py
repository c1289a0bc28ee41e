"""A reference of quantising (tpiedge.kernels.quantise), in numpy: slow, and not used by anything but tests."""

import numpy as np

from tpiedge.kernels.panels import GROUP, PANEL, Array, Codes, PanelShape
from tpiedge.kernels.quantise import QuantisationError

_DIVISORS = {8: (-127.0,), 4: (8.0, 7.0, 7.5, 8.5, 9.0, 9.5)}
"""By bits: m / -d is tried as a scale, the first of them always."""
_CODES = {8: (-127, 127), 4: (-8, 7)}
"""By bits: the least and the greatest code, less its offset."""


def quantise_by_numpy(
    values_OI: Array, shape: PanelShape, search: bool, out: Array
) -> QuantisationError | None:
    w_PGir = _by_groups(values_OI, shape.panels)
    with np.errstate(all="ignore"):
        scales_PGr, code_PGir, error_PGr = _choose(w_PGir, shape.format.bits, search)
    if not (np.isfinite(w_PGir).all() and np.isfinite(scales_PGr).all()):
        return None
    codes = (code_PGir + np.float32(shape.format.offset)).astype(np.uint8)
    codes_OI = codes.reshape(shape.panels, -1, PANEL).swapaxes(1, 2).reshape(shape.panels * PANEL, -1)
    scales = np.ascontiguousarray(scales_PGr.swapaxes(1, 2)).view(shape.format.scales.dtype)
    of_outputs = Codes(
        shape.format,
        codes_OI[: shape.outputs, : shape.inputs],
        scales.reshape(shape.panels * PANEL, -1)[: shape.outputs],
    )
    out[:] = of_outputs.panels(shape)
    signal = float(np.square(w_PGir, dtype=np.float64).sum())
    return QuantisationError(signal, float(error_PGr.sum(dtype=np.float64)))


def _by_groups(values_OI: Array, panels: int) -> Array:
    """[panels, groups, 32, 16] in f32, filled up with zeros."""
    outputs, inputs = values_OI.shape
    groups = -(-inputs // GROUP)
    whole = np.zeros((panels * PANEL, groups * GROUP), np.float32)
    whole[:outputs, :inputs] = wide(values_OI)
    return np.ascontiguousarray(whole.reshape(panels, PANEL, groups, GROUP).transpose(0, 2, 3, 1))


def _choose(w_PGir: Array, bits: int, search: bool) -> tuple[Array, Array, Array]:
    at = np.abs(w_PGir).argmax(2)[:, :, None]
    extreme = np.take_along_axis(w_PGir, at, 2)[:, :, 0]
    first, *others = _DIVISORS[bits]
    if bits == 8:
        extreme = np.abs(extreme)
    best = _try(w_PGir, extreme / np.float32(-first), bits)
    if bits == 8 or not search:
        return best
    for divisor in others:
        best = _better(best, _try(w_PGir, extreme / np.float32(-divisor), bits))
    return _better(best, _try(w_PGir, _fitting(w_PGir, best[1]), bits))


def _try(w_PGir: Array, wanted_PGr: Array, bits: int) -> tuple[Array, Array, Array]:
    scale = wanted_PGr.astype(np.float16) + np.float16(0)  # not -0
    wide = scale.astype(np.float32)
    inverse = np.where(wide == 0, np.float32(0), np.float32(1) / wide)
    least, greatest = _CODES[bits]
    codes = np.clip(np.rint(w_PGir * inverse[:, :, None]), np.float32(least), np.float32(greatest))
    codes += np.float32(0)  # not -0
    error = np.zeros_like(wide)
    for i in range(GROUP):
        off = w_PGir[:, :, i] - codes[:, :, i] * wide
        error += off * off
    return scale, codes, error


def _better(one: tuple[Array, Array, Array], other: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    takes = other[2] < one[2]
    codes = np.where(takes[:, :, None], other[1], one[1])
    return np.where(takes, other[0], one[0]), codes, np.where(takes, other[2], one[2])


def _fitting(w_PGir: Array, code_PGir: Array) -> Array:
    over, under = (np.zeros((*w_PGir.shape[:2], PANEL), np.float32) for _ in range(2))
    for i in range(GROUP):
        over += w_PGir[:, :, i] * code_PGir[:, :, i]
        under += code_PGir[:, :, i] * code_PGir[:, :, i]
    return np.where(under == 0, np.float32(0), over / under)


def wide(values: Array) -> Array:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
