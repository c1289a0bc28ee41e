import pytest

from tpiedge.errors import UserError
from tpiedge.model.gguf import names

PARTS = [f"big-Q8_0-{part:05}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.mark.parametrize(("stem", "quant"), [
    ("Qwen3-4B-Q4_K_M", "Q4_K_M"), ("qwen2.5-0.5b-instruct-q8_0", "Q8_0"), ("tiny.Q4_0", "Q4_0"), ("model-f16", "F16"),
    ("m-BF16", "BF16"), ("m-fp16", "FP16"), ("gemma-UD-Q4_K_XL", "UD-Q4_K_XL"), ("m-IQ4_XS", "IQ4_XS"),
    ("oss-mxfp4", "MXFP4"), ("folder/Q8_0", "Q8_0"), ("model_q5_1", "Q5_1"), ("Qwen3-4B", ""), ("q8_0-imatrix", ""),
])  # fmt: skip
def test_quantisation_is_read_from_the_end_of_a_name(stem: str, quant: str) -> None:
    assert names.quant_of(stem) == quant


@pytest.mark.parametrize(("files", "models"), [
    (["b-Q8_0.gguf", "a-Q4_0.gguf", "README.md"], {"a-Q4_0": ["a-Q4_0.gguf"], "b-Q8_0": ["b-Q8_0.gguf"]}),
    ([*reversed(PARTS)], {"big-Q8_0": PARTS}),
    (PARTS[:2], {}),
    ([*PARTS, "big-Q8_0.gguf"], {"big-Q8_0": ["big-Q8_0.gguf"]}),
    ([f"Q8_0/{part}" for part in PARTS], {"Q8_0/big-Q8_0": [f"Q8_0/{part}" for part in PARTS]}),
    (["mmproj-a-f16.gguf", "a-MMPROJ.gguf"], {}),
    (["x-Q8_0-00001-of-99999.gguf"], {}),
])  # fmt: skip
def test_models_are_whole_files_or_all_their_parts(files: list[str], models: dict[str, list[str]]) -> None:
    assert names.models_in(files) == models
    assert names.projectors(files) == [one for one in files if "mmproj" in one.lower()]


@pytest.mark.parametrize(("tag", "found"), [
    ("Q4_K_M", "m-Q4_K_M"), ("q4_k_m", "m-Q4_K_M"), ("M-UD-Q4_K_M", "x/m-UD-Q4_K_M"), ("UD-Q4_K_M", "x/m-UD-Q4_K_M"),
    ("fp16", "m-fp16"), ("plain", "plain"), ("IQ4_XS", "m-IQ4_XS"), ("A-Q8_0", "a-Q8_0"),
    ("K_M", "no GGUF file for K_M: give one of org/m:A-Q8_0"), ("Q4", "no GGUF file for Q4"),
    ("Q8_0", "several GGUF files for Q8_0: give one of org/m:A-Q8_0, org/m:b-Q8_0"),
    ("IQ2_M", "cannot read IQ2_M"), ("TQ1_0", "cannot read TQ1_0"), ("Q4_0_4_4", "cannot read Q4_0_4_4"),
    ("MXFP4", "m-MXFP4"),
])  # fmt: skip
def test_tag_means_a_quantisation_or_a_file(tag: str, found: str) -> None:
    stems = [
        "m-Q4_K_M",
        "x/m-UD-Q4_K_M",
        "A-Q8_0",
        "b-Q8_0",
        "m-fp16",
        "plain",
        "m-IQ4_XS",
        "m-IQ2_M",
        "m-TQ1_0",
    ]
    sizes = {f"{stem}.gguf": 1 for stem in (*stems, "m-MXFP4", "m-Q4_0_4_4")}
    if " " not in found:
        (name,) = names.chosen_gguf("org/m", tag, sizes)
        assert name.lower() == f"{found}.gguf".lower()
        return
    with pytest.raises(UserError, match=found):
        names.chosen_gguf("org/m", tag, sizes)


def test_readable_files_are_offered_with_their_sizes() -> None:
    sizes = {
        PARTS[0]: 2000,
        PARTS[1]: 1000,
        PARTS[2]: 500,
        "m-Q4_0.gguf": 3000,
        "m-IQ2_M.gguf": 1,
        "plain.gguf": 4000,
    }
    words = "give one of org/m:Q4_0 (3.0 kB), org/m:Q8_0 (3.5 kB), org/m:plain (4.0 kB)"
    assert names.offered("org/m", sizes) == words
    assert names.offered("org/m", {"m-IQ2_M.gguf": 1}) == "it has none that tpiedge reads"
    with pytest.raises(UserError, match="tpiedge pull org/m takes a checkpoint"):
        names.chosen_gguf("org/m", "Q8_0", {"model.safetensors": 1})
