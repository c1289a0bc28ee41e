"""The matrices of a GPTQ or AWQ checkpoint, each joined from its parts: NAME.qweight, .qzeros, .scales, .g_idx."""

from collections import Counter
from collections.abc import Iterator, Mapping

from tpiedge.errors import UserError
from tpiedge.model.quantisation import Quantisation
from tpiedge.pack.layout import Precision
from tpiedge.pack.sources.imported import AnyTensor
from tpiedge.pack.sources.int4_tensor import Int4Tensor
from tpiedge.pack.sources.int4_words import WORD
from tpiedge.pack.sources.source import SourceTensor
from tpiedge.pack.writing.quality import Quality
from tpiedge.sanitise import quote
from tpiedge.units import counted

WEIGHT = ".qweight"
"""How the names of quantised matrices end."""

_ZEROS, _SCALES, _GROUPS = ".qzeros", ".scales", ".g_idx"
_SCALE_DTYPES = ("F16", "BF16", "F32")


def joined_tensors(tensors: Mapping[str, SourceTensor], quantisation: Quantisation) -> dict[str, AnyTensor]:
    """`tensors` with NAME.weight in the place of the parts of NAME. Raises UserError for parts that do not fit."""
    joined: dict[str, AnyTensor] = {}
    parts: set[str] = set()
    for name in tensors:
        if name.endswith(WEIGHT):
            base = name.removesuffix(WEIGHT)
            joined[f"{base}.weight"] = _joined(base, tensors, quantisation)
            parts |= {base + part for part in (WEIGHT, _ZEROS, _SCALES, _GROUPS)}
    return {name: tensor for name, tensor in tensors.items() if name not in parts} | joined


def rounded_tensors(
    tensors: Mapping[str, AnyTensor], quantisation: Quantisation, layers: Precision, quality: Quality | None
) -> Iterator[str]:
    """Which of the joined tensors a pack holds otherwise than the checkpoint, a line for each kind.

    The pack has its layers in `layers`, and this quality where something in it is quantised.
    """
    found: Counter[str] = Counter()
    if layers is Precision.BF16:  # which has no room for a code and its scale
        found[layers.value] = sum(isinstance(tensor, Int4Tensor) for tensor in tensors.values())
    for one in quality.tensors if quality else ():
        found[one.precision.value] += isinstance(tensors.get(one.tensor), Int4Tensor) and one.error.noise > 0
    for precision, count in sorted(found.items()):
        if count:
            apart = quantisation.act_order and quantisation.group is not None and quality is not None
            cause = ", because act-order has put the inputs of a group apart" if apart else ""
            are = "are" if count > 1 else "is"
            matrices = counted(count, "matrix", "matrices")
            yield f"{matrices} of {quantisation.method.upper()} {are} rounded to {precision}{cause}"


def _joined(base: str, tensors: Mapping[str, SourceTensor], quantisation: Quantisation) -> Int4Tensor:
    qweight, qzeros = (_part(base + part, tensors, ("I32", "U32")) for part in (WEIGHT, _ZEROS))
    scales = _part(base + _SCALES, tensors, _SCALE_DTYPES)
    rows, cols = qweight.shape
    inputs, outputs = (rows, cols * WORD) if quantisation.method == "awq" else (rows * WORD, cols)
    group = quantisation.group or inputs
    groups = -(-inputs // group)
    if scales.shape != (groups, outputs) or qzeros.shape != (groups, outputs // WORD) or outputs % WORD:
        raise UserError(
            f"{qweight.file}: the parts of {quote(base, 100)} do not fit together: qweight {qweight.shape}, "
            f"qzeros {qzeros.shape}, scales {scales.shape} with groups of {group}"
        )
    return Int4Tensor(
        (outputs, inputs),
        quantisation.method,
        group,
        quantisation.zero_offset,
        qweight,
        qzeros,
        scales,
        _group_of(base, inputs, tensors, quantisation),
    )


def _group_of(
    base: str, inputs: int, tensors: Mapping[str, SourceTensor], quantisation: Quantisation
) -> SourceTensor | None:
    """The table of the inputs' groups, which may be left out where it says nothing."""
    found = tensors.get(base + _GROUPS)
    if found and found.dtype == "I32" and found.shape == (inputs,):
        return found
    if quantisation.act_order:
        raise UserError(
            f"the checkpoint has no usable {quote(base + _GROUPS, 100)}; download the model again"
        )
    return None


def _part(name: str, tensors: Mapping[str, SourceTensor], dtypes: tuple[str, ...]) -> SourceTensor:
    found = tensors.get(name)
    if found is None:
        raise UserError(f"tensor {quote(name, 100)} is missing from the checkpoint; download the model again")
    if found.dtype not in dtypes or len(found.shape) != 2 or 0 in found.shape:
        raise UserError(
            f"{found.file}: tensor {quote(name, 100)} is {found.dtype} of the shape {found.shape}"
        )
    return found
