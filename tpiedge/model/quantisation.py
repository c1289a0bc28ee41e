"""Reads how a checkpoint is quantised: by GPTQ or AWQ in 4 bits, or in MXFP4. Joins each matrix of GPTQ and AWQ from
its parts NAME.qweight, .qzeros, .scales and .g_idx."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.model.folder import ConfigFields, parse_json
from tpiedge.pack.layout import Storage
from tpiedge.pack.panel_writer import Quality
from tpiedge.pack.quantised import (
    BLOCKS,
    WORD,
    BlockTensor,
    Int4Tensor,
    MXFP4Tensor,
    cut_at_blocks,
    holds_exactly,
)
from tpiedge.pack.source import OpenFiles, SourceTensor, StoredTensor
from tpiedge.pack.specs import ModelSpec, Precision, sources_of
from tpiedge.sanitise import quote
from tpiedge.units import counted

QUANTISATION_KEY = "quantization_config"
OLD_FILES: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""File -> method. These files describe the quantisation if config.json does not."""

_OLD_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}

_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_WITHOUT_GROUPS = -1


@dataclass(frozen=True)
class Quantisation:
    """`group` is the number of inputs that share a scale; None means all inputs. `zero_offset` is added to stored
    zero points. If `symmetric` is true, all zero points are 8. If `act_order` is true, a table has each input's
    group."""

    method: str  # "gptq", "awq" or "mxfp4"
    group: int | None
    zero_offset: int
    symmetric: bool
    act_order: bool

    @property
    def is_apart(self) -> bool:
        """Whether the inputs of a group may lie apart."""
        return self.act_order and self.group is not None

    def storage(self, tensors: Mapping[str, StoredTensor], spec: ModelSpec) -> Storage:
        """Returns the storage of a checkpoint that rounds fewest weights. Raises UserError, ReadFault."""
        usual, own = Precision.Q4 if self.symmetric else Precision.Q4_ZERO, {}
        usual = Precision.MXFP4 if self.method == "mxfp4" else usual
        with closing(OpenFiles()) as files:
            for matrix, count in (one for layer in spec.layers for one in layer.counted_matrices):
                found = map(tensors.get, sources_of(matrix.source, count))
                kept = cut_at_blocks(matrix, GROUP) and all(
                    isinstance(tensor, MXFP4Tensor) or (isinstance(tensor, Int4Tensor) and tensor.fits(files))
                    for tensor in found
                )
                own[matrix.source] = usual if kept else Precision.Q8
        return Storage.keeping(spec, own)

    @staticmethod
    def of(config: ConfigFields, old: tuple[Path, bytes] | None = None) -> "Quantisation | None":
        """Reads config.json, or the `old` file (path, content) if config.json describes no quantisation. Returns None
        for plain weights."""
        if old and QUANTISATION_KEY not in config.values:
            path, data = old
            renamed = {_OLD_NAMES.get(key, key): one for key, one in parse_json(data, str(path)).items()}
            values = {"quant_method": OLD_FILES[path.name], **renamed}
            config = ConfigFields(str(path), {QUANTISATION_KEY: values})
        if config.raw(QUANTISATION_KEY) is None:
            return None
        fields = config.fields(QUANTISATION_KEY)
        method = fields.text("quant_method", "")
        original = "give the original checkpoint"
        if method == "mxfp4":
            return Quantisation(method, GROUP, 0, True, False)
        if method not in ("gptq", "awq"):
            fields.refuse(
                "quant_method", f"is {quote(method)}; supported are gptq, awq and mxfp4: {original}"
            )
        if (bits := fields.integer("bits", 1, 64)) != 4:
            fields.refuse("bits", f"is {quote(bits)}; supported is 4: {original}")
        size = fields.integer("group_size", _WITHOUT_GROUPS, 1 << 17)
        if size == 0:
            fields.refuse("group_size", "is 0")
        group = None if size == _WITHOUT_GROUPS else size
        if method == "awq":
            layout = fields.text("version", "gemm")
            if layout.lower() != "gemm":
                fields.refuse("version", f"is {quote(layout)}; supported is gemm")
            return Quantisation(method, group, 0, not fields.flag("zero_point", True), False)
        layout = fields.choice("checkpoint_format", _GPTQ_ZERO_OFFSETS, "gptq")
        for module in fields.fields("dynamic").values:  # "-:" begins those that are not quantised
            if not module.startswith("-:"):
                fields.refuse("dynamic", f"gives {quote(module, 100)} another quantisation: {original}")
        symmetric, act_order = fields.flag("sym", False), fields.flag("desc_act", False)
        return Quantisation(method, group, _GPTQ_ZERO_OFFSETS[layout], symmetric, act_order)


WEIGHT = ".qweight"
_ZEROS, _SCALES, _GROUPS = ".qzeros", ".scales", ".g_idx"
_SCALE_DTYPES = ("F16", "BF16", "F32")


def joined_tensors(
    tensors: Mapping[str, SourceTensor], quantisation: Quantisation
) -> dict[str, StoredTensor]:
    """Returns all tensors, with the parts of each NAME joined to NAME.weight."""
    joined: dict[str, StoredTensor] = {}
    parts: set[str] = set()
    for name in tensors:
        if name.endswith(WEIGHT):
            base = name.removesuffix(WEIGHT)
            joined[f"{base}.weight"] = _joined(base, tensors, quantisation)
            parts |= {base + part for part in (WEIGHT, _ZEROS, _SCALES, _GROUPS)}
    return {name: tensor for name, tensor in tensors.items() if name not in parts} | joined


def rounded_matrices(
    tensors: Mapping[str, StoredTensor],
    spec: ModelSpec,
    storage: Storage,
    quality: Quality | None,
    quantisation: Quantisation | None = None,
) -> Iterator[str]:
    """Yields lines like "7 matrices of Q6_K are rounded to q8 (44 dB)". Without `quality`, a GGUF tensor's type decides
    whether it was rounded."""
    noisy = {one.tensor: one.error for one in quality.tensors if one.error.noise > 0} if quality else {}
    found: Counter[tuple[str, str]] = Counter()
    errors: defaultdict[tuple[str, str], QuantisationError] = defaultdict(QuantisationError)
    method = quantisation.method if quantisation else ""
    for key, blob in spec.blobs.items():
        for matrix, experts in blob.counted_matrices:
            precision, noise = storage.of_matrix(key, matrix), noisy.get(matrix.source)
            kinds = Counter(_kind(tensors[one], method) for one in sources_of(matrix.source, experts))
            for kind in filter(None, kinds):
                is_rounded = noise is not None
                if quality is None and precision.quantised and kind in BLOCKS:
                    is_rounded = not holds_exactly(precision.format, kind, matrix)
                is_rounded |= precision is Precision.BF16 and kind != "BF16"
                found[kind, precision.value] += kinds[kind] * is_rounded
                errors[kind, precision.value] += noise or QuantisationError()
    apart = quantisation is not None and quantisation.is_apart
    for (kind, rounded), count in sorted(found.items()):
        if count:
            matrices = f"{counted(count, 'matrix', 'matrices')} of {kind}"
            by_order = apart and Precision(rounded).quantised
            cause = ", because act-order has put the inputs of a group apart" if by_order else ""
            error = errors[kind, rounded]
            ratio = f" ({error.sqnr_db:.0f} dB)" if error.noise else ""
            yield f"{matrices} {'are' if count > 1 else 'is'} rounded to {rounded}{ratio}{cause}"


def _kind(tensor: StoredTensor, method: str) -> str:
    """Returns the type of a quantised tensor, of any tensor of a GGUF file or beside experts in MXFP4, else ""."""
    match tensor:
        case BlockTensor(kind=kind):
            return kind
        case Int4Tensor(scheme=scheme):
            return scheme.upper()
        case MXFP4Tensor():
            return "MXFP4"
    return tensor.dtype if method == "mxfp4" else ""


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
    # Checkpoints without act-order may lack the table of the inputs' groups.
    table = tensors.get(base + _GROUPS)
    if not table or table.dtype != "I32" or table.shape != (inputs,):
        table = None
        if quantisation.act_order:
            raise UserError(
                f"the checkpoint has no usable {quote(base + _GROUPS, 100)}; download the model again"
            )
    method, offset = quantisation.method, quantisation.zero_offset
    return Int4Tensor(method, (outputs, inputs), group, offset, qweight, qzeros, scales, table)


def _part(name: str, tensors: Mapping[str, SourceTensor], dtypes: tuple[str, ...]) -> SourceTensor:
    found = tensors.get(name)
    if found is None:
        raise UserError(f"tensor {quote(name, 100)} is missing from the checkpoint; download the model again")
    if found.dtype not in dtypes or len(found.shape) != 2 or 0 in found.shape:
        raise UserError(
            f"{found.file}: tensor {quote(name, 100)} is {found.dtype} of the shape {found.shape}"
        )
    return found
