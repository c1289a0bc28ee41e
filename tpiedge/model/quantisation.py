"""`quantization_config`: how a checkpoint's weights were quantised. Known are GPTQ and AWQ with 4 bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpiedge.model.fields import ConfigFields
from tpiedge.pack.layout import Precision
from tpiedge.sanitise import quote

QUANTISATION_KEY = "quantization_config"
OLD_FILES = MappingProxyType({"quantize_config.json": "gptq", "quant_config.json": "awq"})
"""Name -> method of the files that say the same beside a config.json without the key."""

# As AWQ once called them.
_OLD_NAMES = MappingProxyType({"w_bit": "bits", "q_group_size": "group_size"})

_MAX_GROUP = 1 << 17
_METHODS = ("gptq", "awq")
_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_WITHOUT_GROUPS = -1


@dataclass(frozen=True)
class Quantisation:
    """`method` is "gptq" or "awq". `group` inputs share a scale (None: all of them).

    `zero_offset` is what is added to a stored zero point; where `symmetric`, the zero point is 8 everywhere.
    `act_order`: each input names its group.
    """

    method: str
    group: int | None
    zero_offset: int
    symmetric: bool
    act_order: bool

    @property
    def precision(self) -> Precision:
        """The precision of a pack that holds such weights as they are, or, where their groups are ordered otherwise,
        adds little to their error.
        """
        in_order = not (self.act_order and self.group)
        return Precision.Q4 if self.symmetric and in_order else Precision.Q8

    @staticmethod
    def of(config: ConfigFields) -> "Quantisation | None":
        """Reads the object in config.json; None where its weights are plain. Raises UserError for other methods."""
        if config.raw(QUANTISATION_KEY) is None:
            return None
        fields = config.fields(QUANTISATION_KEY)
        method = fields.text("quant_method", "")
        if method not in _METHODS:
            fields.refuse(
                "quant_method",
                f"is {quote(method)}; supported are gptq and awq: give the original checkpoint",
            )
        if fields.integer("bits", 1, 64) != 4:
            fields.refuse(
                "bits", f"is {quote(fields.raw('bits'))}; supported is 4: give the original checkpoint"
            )
        size = fields.integer("group_size", _WITHOUT_GROUPS, _MAX_GROUP)
        if size == 0:
            fields.refuse("group_size", "is 0")
        group = None if size == _WITHOUT_GROUPS else size
        return _gptq(fields, group) if method == "gptq" else _awq(fields, group)


def of_old_file(name: str, values: Mapping[str, object]) -> dict[str, object]:
    """What stands in the file `name` of OLD_FILES, as the object under QUANTISATION_KEY."""
    renamed = {_OLD_NAMES.get(key, key): value for key, value in values.items()}
    return {"quant_method": OLD_FILES[name], **renamed}


def _gptq(fields: ConfigFields, group: int | None) -> Quantisation:
    layout = fields.text("checkpoint_format", "gptq")
    if layout not in _GPTQ_ZERO_OFFSETS:
        fields.refuse(
            "checkpoint_format", f"is {quote(layout)}; supported are {', '.join(_GPTQ_ZERO_OFFSETS)}"
        )
    if fields.raw("dynamic"):
        fields.refuse("dynamic", "is set: layers that were quantised differently are not supported")
    return Quantisation(
        "gptq", group, _GPTQ_ZERO_OFFSETS[layout], fields.flag("sym", False), fields.flag("desc_act", False)
    )


def _awq(fields: ConfigFields, group: int | None) -> Quantisation:
    layout = fields.text("version", "gemm")
    if layout.lower() != "gemm":
        fields.refuse("version", f"is {quote(layout)}; supported is gemm")
    return Quantisation("awq", group, 0, not fields.flag("zero_point", True), False)
