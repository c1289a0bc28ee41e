"""The presets against figures that were not used to write them: published parameter counts."""

import importlib.util
from pathlib import Path

from tpiedge.model.presets import PRESETS, preset

TOOL = Path(__file__).parents[3] / "tools" / "make_checkpoint.py"

PARAMETERS = {
    "tinyllama": 1_100_048_384,
    "llama2-3b": 3_426_473_600,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "yi-34b": 34_388_917_248,
    "llama3-8b": 8_030_261_248,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3.3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "granite3.3-2b": 2_533_539_840,
    "granite3.3-8b": 8_170_864_640,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "gemma4-e2b": 4_628_569_379,
    "gemma4-e4b": 7_463_013_418,
    "gemma4-12b": 11_907_350_320,
    "gemma4-26b-a4b": 25_233_141_790,
    "gemma4-31b": 30_697_345_340,
    "ministral3-3b": 3_429_006_336,
    "ministral3-8b": 8_489_553_920,
    "ministral3-14b": 13_506_073_600,
    "mistral-small3.2-24b": 23_572_403_200,
    "phi4-mini-3.8b": 3_836_021_760,
    "phi4-14b": 14_659_507_200,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "mixtral-8x7b": 46_702_792_704,
}
"""As the publishers' model pages state them (a tied embedding counts once), without the parts that see images."""


def load_tool():
    spec = importlib.util.spec_from_file_location("make_checkpoint", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_preset_has_its_published_size():
    tool = load_tool()
    counted = {
        name: sum(t.nbytes for t in tool.tensors(tool.model(preset(name)), "f32")) // 4 for name in PRESETS
    }
    assert counted == PARAMETERS
