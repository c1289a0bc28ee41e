"""How a checkpoint says that its weights were quantised, also in the files of before."""

from typing import Any

import pytest

from tpiedge.errors import UserError
from tpiedge.model.fields import ConfigFields
from tpiedge.model.quantisation import QUANTISATION_KEY, Quantisation, of_old_file


def read(name: str, values: dict[str, Any]) -> Quantisation | None:
    return Quantisation.of(ConfigFields(name, {QUANTISATION_KEY: of_old_file(name, values)}))


def test_the_old_file_of_awq() -> None:
    values = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    assert read("quant_config.json", values) == Quantisation("awq", 128, 0, False, False)
    with pytest.raises(
        UserError, match=r"quant_config\.json, quantization_config: bits is 3; supported is 4"
    ):
        read("quant_config.json", values | {"w_bit": 3})
    with pytest.raises(UserError, match="version is 'GEMV'; supported is gemm"):
        read("quant_config.json", values | {"version": "GEMV"})


def test_the_old_file_of_gptq() -> None:
    values = {"bits": 4, "group_size": -1, "sym": True, "desc_act": True, "damp_percent": 0.01}
    assert read("quantize_config.json", values) == Quantisation("gptq", None, 1, True, True)


def test_a_method_that_is_named_wins() -> None:
    with pytest.raises(UserError, match="quant_method is 'marlin'"):
        read("quant_config.json", {"quant_method": "marlin", "w_bit": 4, "q_group_size": 64})
