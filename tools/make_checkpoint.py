"""Write a Hugging Face checkpoint of a real model's shape with random weights.

    python tools/make_checkpoint.py --preset tinyllama --dtype bf16 OUT
    python tools/make_checkpoint.py --preset llama2-70b --layers 4 --dtype f32 --shard-size 4GB OUT

OUT is a folder that must not exist yet; it appears under its name only when it is complete. It holds
config.json, generation_config.json, model.safetensors (or shards with an index), and a tokenizer that works:
text to byte tokens and back exactly, while the ids beyond the bytes decode to invented words.

The weights are those of `RandomSource`: a function of seed and tensor name, whatever the shard size, and bf16
is f32 rounded. Memory stays below 200 MB whatever the size of a tensor.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.kernels.panels import Array
from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.spec import model_spec
from tpiedge.pack.dtypes import SourceDtype
from tpiedge.pack.export import INDEX_NAME, TensorEntry, header, index, split_shards
from tpiedge.pack.files import check_free_space, explain_write_errors, lock_target, partial_folder
from tpiedge.pack.specs import ModelSpec
from tpiedge.units import format_bytes, format_seconds, parse_bytes

Config = dict[str, object]

DTYPES: dict[str, tuple[SourceDtype, str, int]] = {
    "f32": ("F32", "float32", 4),
    "bf16": ("BF16", "bfloat16", 2),
    "f16": ("F16", "float16", 2),
}
"""Our name -> safetensors' name, config.json's name, bytes per element."""

SMALL_FILES_BYTES = 64_000_000
"""More than tokenizer and configs take."""

CHUNK = 4 * 1024 * 1024
"""Elements drawn and written at a time."""


# --- tensors ---


def model(config: Config) -> ModelSpec:
    """Returns the matrices and vectors of `config`. Raises UserError for a model that tpiedge does not run."""
    return model_spec(ModelConfig.from_huggingface(config))


def tensors(spec: ModelSpec, dtype: str) -> list[TensorEntry]:
    return [TensorEntry(name, DTYPES[dtype][0], shape) for name, shape in spec.source_shapes.items()]


def chunks(source: RandomSource, tensor: TensorEntry) -> Iterator[memoryview]:
    """Yields the bytes of `tensor` in row-major order, about CHUNK elements at a time."""
    if len(tensor.shape) == 1:
        yield _bytes(source.read(tensor.name))
        return
    rows, cols = tensor.shape
    step = max(1, CHUNK // cols)
    for first in range(0, rows, step):
        yield _bytes(source.read(tensor.name, range(first, min(first + step, rows))))


def _bytes(values: Array) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B")


# --- files ---


def write_weights(
    folder: Path, config: Config, dtype: str, seed: int, shard_size: int, progress: "Progress"
) -> None:
    spec = model(config)
    source = RandomSource.for_spec(seed, spec, DTYPES[dtype][0])
    shards = split_shards(tensors(spec, dtype), shard_size)
    for name, shard in shards.items():
        with open(folder / name, "wb") as file:
            file.write(header(shard))
            for chunk in chain.from_iterable(chunks(source, tensor) for tensor in shard):
                file.write(chunk)
                progress.advance(len(chunk))
    if len(shards) > 1:
        _write_json(folder / INDEX_NAME, index(shards))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- tokenizer ---


def _whole(config: Config, key: str) -> int:
    value = config[key]
    if not isinstance(value, int):
        raise UserError(f"{key} of the preset is {value!r}: a whole number is needed")
    return value


def special_tokens(config: Config) -> dict[int, str]:
    """Returns id -> text of the tokens that config.json calls bos and eos."""
    eos = config["eos_token_id"]
    ends = eos if isinstance(eos, list) else [eos]
    found = {end: f"<|end_{number}|>" if number else "<|end|>" for number, end in enumerate(ends)}
    begin = {_whole(config, "bos_token_id"): "<|begin|>"} if "bos_token_id" in config else {}
    return begin | found


def vocabulary(size: int, special: dict[int, str]) -> dict[str, int]:
    """Returns token -> id for every id below `size`: special tokens, the 256 bytes, and invented words."""
    free = (i for i in range(size) if i not in special)
    found = {text: i for i, text in special.items()}
    found |= dict(zip(_byte_alphabet(), free, strict=False))
    found |= {word: i for i, word in zip(free, _words(), strict=False)}
    return found


def _byte_alphabet() -> list[str]:
    """Returns the printable character of each byte value in byte-level BPE, as GPT-2 defined it."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _words() -> Iterator[str]:
    """Yields ' ba', ' be', ..., ' baba', ...: words of one, two and more syllables, each with a leading space."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = [""]
    while True:
        words = [word + syllable for word in words for syllable in syllables]
        yield from ("\u0120" + word for word in words)


def tokenizer(config: Config) -> Config:
    """Returns tokenizer.json: byte-level BPE without merges. Llama and Mistral start every text with bos."""
    special = special_tokens(config)
    added = [
        {"id": i, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in sorted(special.items())
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe: Config = {"type": "BPE", "unk_token": None, "byte_fallback": False, "merges": []}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _starts_with_bos(config, special),
        "decoder": byte_level,
        "model": bpe | {"vocab": vocabulary(_whole(config, "vocab_size"), special)},
    }


def _starts_with_bos(config: Config, special: dict[int, str]) -> Config | None:
    if config["model_type"] not in ("llama", "mistral"):
        return None
    bos = _whole(config, "bos_token_id")
    text = special[bos]
    one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
    start = {"SpecialToken": {"id": text, "type_id": 0}}
    named = {text: {"id": text, "ids": [bos], "tokens": [text]}}
    return {
        "type": "TemplateProcessing",
        "single": [start, one],
        "pair": [start, one, two],
        "special_tokens": named,
    }


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_small_files(folder: Path, config: Config) -> None:
    special = special_tokens(config)
    eos = config["eos_token_id"]
    _write_json(folder / "config.json", config)
    stops: Config = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **stops})
    _write_json(folder / "tokenizer.json", tokenizer(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[_whole(config, "bos_token_id")] if "bos_token_id" in config else None,
        "eos_token": special[eos[0] if isinstance(eos, list) else _whole(config, "eos_token_id")],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)


# --- the command ---


class Progress:
    """Shows bytes written, rate and time left: redraws a line on a terminal, else prints a line every 5 seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        now = time.monotonic()
        if self._done == self._total or now - self._shown >= (0.1 if self._terminal else 5):
            self._shown = now
            self._show(now - self._start)

    def _show(self, elapsed_s: float) -> None:
        rate = self._done / max(elapsed_s, 1e-6)
        left = format_seconds((self._total - self._done) / rate)
        finished = self._done == self._total
        state = f"in {format_seconds(elapsed_s)}" if finished else f"{left} left"
        line = f"{format_bytes(self._done)} of {format_bytes(self._total)}, {format_bytes(rate)}/s, {state}"
        start, end = ("\r\x1b[K", "\n" if finished else "") if self._terminal else ("", "\n")
        print(start + line, end=end, file=sys.stderr, flush=True)


def make_checkpoint(out: Path, config: Config, *, dtype: str, seed: int, shard_size: int) -> int:
    """Writes the checkpoint and returns the bytes of its weights; `config` is a preset, `shard_size` in bytes.

    Raises UserError if `out` exists and DiskFull if there is no room; a failure leaves nothing behind.
    """
    out = out.absolute()
    if out.exists():
        raise UserError(f"{out} exists already: choose another folder or remove it")
    config = config | {"torch_dtype": DTYPES[dtype][1]}
    total = sum(tensor.nbytes for tensor in tensors(model(config), dtype))
    needed = total + SMALL_FILES_BYTES
    with explain_write_errors(out.parent, needed):
        out.parent.mkdir(parents=True, exist_ok=True)
        with lock_target(out, timeout_s=0.0):
            check_free_space(out.parent, needed)
            with partial_folder(out) as partial:
                write_small_files(partial, config)
                write_weights(partial, config, dtype, seed, shard_size, Progress(total))
    return total


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a Hugging Face checkpoint with random weights.")
    parser.add_argument(
        "--preset", required=True, choices=sorted(PRESETS), metavar="NAME", help="whose shape"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="the first N layers only")
    parser.add_argument(
        "--positions", type=int, metavar="N", help="of a context at most, another than the preset's"
    )
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), default="bf16", help="storage type (default: bf16)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default: 0)")
    parser.add_argument("--shard-size", default="4GB", metavar="SIZE", help="largest file (default: 4GB)")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to create")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        config = preset(options.preset)
        if options.layers is not None:
            config["num_hidden_layers"] = options.layers
        if options.positions is not None:
            config["max_position_embeddings"] = options.positions
        shard_size = parse_bytes(options.shard_size)
        make_checkpoint(options.out, config, dtype=options.dtype, seed=options.seed, shard_size=shard_size)
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
