"""Everything that reads bytes of strangers, each with its first inputs and the errors that it may end with."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.fuzz.forms import GGUF, JSON, MANIFEST, MESSAGEPACK, SAFETENSORS, TEXT, Form
from tpiedge.errors import ProtocolError, UserError

__all__ = ["CORPUS", "PARSERS", "Parser"]

CORPUS = Path(__file__).parent / "corpus"
_ROOT = Path(__file__).parents[2]
_DEMO = _ROOT / "tpiedge" / "model" / "demo"
_TEXTS = ("The quick brown fox", " a  b\n", "naïve 你好 🙂 ﷺ", "")

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Parser:
    """`open` gets a scratch folder and gives what reads one input. `confined`: the product runs it in a child process
    whose time and memory are limited, so to reach those limits is in order."""

    name: str
    open: Callable[[Path], Read]
    seeds: Callable[[], list[bytes]]
    refuses: tuple[type[BaseException], ...] = (UserError,)
    form: Form | None = None
    words: tuple[bytes, ...] = ()
    confined: bool = False

    def first(self) -> list[bytes]:
        """Inputs that are in order, and those of the corpus."""
        return [*self.seeds(), *(path.read_bytes() for path in sorted((CORPUS / self.name).glob("*")))]


def _words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


# --- files of a model

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": True,
}  # fmt: skip
_CONFIGS = (
    _CONFIG,
    _CONFIG
    | {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
        "eos_token_id": [1, 2], "bos_token_id": 1, "rope_theta": 500000.0, "head_dim": 8,
    },
    _CONFIG | {"model_type": "qwen3", "layer_types": ["full_attention"], "sliding_window": 4, "head_dim": 4},
    _CONFIG | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    _CONFIG | {"model_type": "mistral", "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    _CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    _CONFIG
    | {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}},
    _CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False}},
    _CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}},
)  # fmt: skip


def _config(folder: Path) -> Read:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec

    def read(data: bytes) -> None:
        (folder / "config.json").write_bytes(data)
        config = ModelConfig.open(folder)
        if config.num_layers <= 64:
            model_spec(config)
        assert ModelConfig.from_json(config.to_json()) == config

    return read


def _generation_config(folder: Path) -> Read:
    from tpiedge.local.usual_sampling import usual_sampling
    from tpiedge.model.config import ModelConfig

    (folder / "config.json").write_text(json.dumps(_CONFIG))

    def read(data: bytes) -> None:
        (folder / "generation_config.json").write_bytes(data)
        ModelConfig.open(folder)
        usual_sampling(folder)

    return read


def _safetensors(folder: Path) -> Read:
    from tpiedge.model.checkpoint import Checkpoint
    from tpiedge.model.spec import model_spec

    plain, gptq = folder / "plain", folder / "gptq"
    for place, config in ((plain, _CONFIG), (gptq, _CONFIGS[-2])):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))

    def read(data: bytes) -> None:
        place = gptq if b"qweight" in data else plain
        (place / "model.safetensors").write_bytes(data)
        checkpoint = Checkpoint.open(place)
        checkpoint.check(model_spec(checkpoint.config))

    return read


def _safetensors_seeds() -> list[bytes]:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec

    def file(tensors: Mapping[str, tuple[str, list[int], int]]) -> bytes:
        header, end = {}, 0
        for name, (dtype, shape, nbytes) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
            end += nbytes
        return SAFETENSORS.write([header, bytes(end)])

    spec = model_spec(ModelConfig.from_huggingface(_CONFIG))
    plain: dict[str, tuple[str, list[int], int]] = {}
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix in blob.matrices:
            plain[matrix.source] = ("BF16", list(matrix.source_shape), 2 * matrix.rows * matrix.cols)
        for vector in blob.vectors:
            plain[vector.source] = ("F32", [vector.length], 4 * vector.length)
    packed = "model.layers.0.self_attn.q_proj"
    quantised = {name: tensor for name, tensor in plain.items() if name != f"{packed}.weight"} | {
        f"{packed}.qweight": ("I32", [2, 16], 128),
        f"{packed}.qzeros": ("I32", [2, 2], 16),
        f"{packed}.scales": ("F16", [2, 16], 64),
        f"{packed}.g_idx": ("I32", [16], 64),
    }
    return [
        file(plain),
        file(quantised),
        SAFETENSORS.write([{"__metadata__": {"format": "pt"}, "a": _tensor(2)}, bytes(8)]),
    ]


def _tensor(count: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}


def _index(folder: Path) -> Read:
    from tpiedge.model.checkpoint import Checkpoint

    (folder / "config.json").write_text(json.dumps(_CONFIG))
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").write_bytes(SAFETENSORS.write([{name: _tensor(2)}, bytes(8)]))

    def read(data: bytes) -> None:
        (folder / "model.safetensors.index.json").write_bytes(data)
        Checkpoint.open(folder)

    return read


def _gguf(folder: Path) -> Read:
    from tpiedge.model.gguf.model import GgufModel

    path = folder / "model.gguf"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        model = GgufModel.open(path)
        list(model.losses(model.storage(None)))
        _ = model.text

    return read


def _gguf_seeds() -> list[bytes]:
    """Headers of three families; the vectors' bytes are zeros."""

    def text(key: str, value: str) -> list[Any]:
        return [key.encode(), 8, value.encode()]

    def file(name: str, tokenizer: list[Any], kind: int) -> bytes:
        sizes = {"block_count": 1, "context_length": 128, "embedding_length": 32, "feed_forward_length": 32,
                 "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 16,
                 "attention.value_length": 16, "rope.dimension_count": 16, "vocab_size": 6}  # fmt: skip
        keys = [text("general.architecture", name), [b"general.alignment", 4, 32]]
        keys += [[f"{name}.{key}".encode(), 4, value] for key, value in sizes.items()]
        keys += [[f"{name}.attention.layer_norm_rms_epsilon".encode(), 6, 1e-5]]
        keys += [[f"{name}.rope.freq_base".encode(), 6, 10000.0], *tokenizer]
        shapes = {"token_embd": [32, 6], "output": [32, 6], "output_norm": [32]}
        shapes |= {f"blk.0.{part}": [32] for part in ("attn_norm", "ffn_norm")}
        if name == "qwen3":
            shapes |= {f"blk.0.{part}": [16] for part in ("attn_q_norm", "attn_k_norm")}
        if name == "qwen2":
            shapes |= {
                f"blk.0.{part}.bias": [size]
                for part, size in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16))
            }
        shapes |= {"blk.0.attn_q": [32, 32], "blk.0.attn_k": [32, 16], "blk.0.attn_v": [32, 16]}
        shapes |= {f"blk.0.{part}": [32, 32] for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")}
        tensors, end = [], 0
        for part, shape in shapes.items():
            one = 0 if len(shape) == 1 else kind
            name_ = part if part.endswith(".bias") else f"{part}.weight"
            tensors.append([name_.encode(), shape, one, end])
            numbers = shape[0] * (shape[1] if len(shape) > 1 else 1)
            nbytes = 4 * numbers if one == 0 else numbers // 32 * {2: 18, 8: 34}[one]
            end += -(-nbytes // 32) * 32
        return GGUF.write([3, keys, tensors, bytes(end)])

    tokens = [b"<unk>", b"<s>", b"</s>", "▁a".encode(), b"b", b"<0x41>"]
    sentencepiece = [
        text("tokenizer.ggml.model", "llama"),
        [b"tokenizer.ggml.tokens", 9, [8, tokens]],
        [b"tokenizer.ggml.scores", 9, [6, [0.0, 0.0, 0.0, -1.0, -2.0, 0.0]]],
        [b"tokenizer.ggml.token_type", 9, [5, [2, 3, 3, 1, 1, 6]]],
        [b"tokenizer.ggml.bos_token_id", 4, 1],
        [b"tokenizer.ggml.eos_token_id", 4, 2],
        [b"tokenizer.ggml.add_bos_token", 7, 1],
        text("tokenizer.chat_template", "{{ messages[0]['content'] }}"),
    ]
    bytewise = [
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "qwen2"),
        [b"tokenizer.ggml.tokens", 9, [8, [b"a", b"b", b"ab", b"<s>", b"</s>", "Ġ".encode()]]],
        [b"tokenizer.ggml.token_type", 9, [5, [1, 1, 1, 3, 3, 1]]],
        [b"tokenizer.ggml.merges", 9, [8, [b"a b"]]],
        [b"tokenizer.ggml.eos_token_id", 4, 4],
    ]
    return [file("llama", sentencepiece, 2), file("qwen2", bytewise, 8), file("qwen3", [], 0)]


def _tokenizer(folder: Path) -> Read:
    from tpiedge.model.detokenizer import Detokenizer
    from tpiedge.model.tokenizer import Tokenizer

    def read(data: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(data)
        tokenizer = Tokenizer.open(folder)
        refusal = None
        for text in _TEXTS:
            try:
                ids = tokenizer.encode(text)
                tokenizer.decode(ids[:64])
                detokenizer = Detokenizer(tokenizer)
                for token_id in ids[:32]:
                    detokenizer.push(token_id)
                    tokenizer.token_bytes(token_id)
                detokenizer.finish()
            except UserError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    return read


def _tokenizer_seeds() -> list[bytes]:
    from tests.unit.model.vocabularies import KINDS

    small: dict[str, Any] = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3},
        "merges": [["a", "b"]],
    }
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.0]]}
    chains: tuple[dict[str, Any], ...] = (
        {"model": small, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "Prepend", "prepend": "▁"},
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
             "lowercase": True}]}},
        {"model": small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": False},
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}},
        {"model": unigram, "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}]}},
        {"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": {"a": 0, "##b": 1}},
         "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}}]}},
        {"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}, "added_tokens": [
            {"id": 5, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": True,
             "special": True}], "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
             "stride": 0}, "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
             "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    )  # fmt: skip
    found = [KINDS[kind]().to_str().encode() for kind in KINDS]
    return found + [json.dumps({"version": "1.0", **chain}).encode() for chain in chains]


def _tokenizer_config(folder: Path) -> Read:
    from tpiedge.model.template import ChatTemplate, has_template
    from tpiedge.model.tokenizer import Tokenizer

    (folder / "tokenizer.json").write_bytes(_tokenizer_seeds()[-1])

    def read(data: bytes) -> None:
        (folder / "tokenizer_config.json").write_bytes(data)
        tokenizer = Tokenizer.open(folder)
        if has_template(folder):
            ChatTemplate.open(folder, tokenizer.special_tokens)

    return read


# --- chat templates

_MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{{ 7 * 7 }} <s> hello"}]
_LEAKS = ("<class 'type'>", "<class 'object'>", "<module '", "'__builtins__'")


class _Escaped(BaseException):
    """The template has laid hands on Python's own objects."""


def _template(folder: Path) -> Read:
    from tpiedge.model import template_child
    from tpiedge.sanitise import sanitised_line

    variables = {"messages": _MESSAGES, "add_generation_prompt": True, "tools": None, "bos_token": "<s>"}

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        job = {"template": text, "variables": variables, "limits": {"characters": 100_000}}
        try:
            shown = template_child._render(job)
        except Exception as error:  # as the child's main does
            raise UserError(sanitised_line(template_child._describe(error), 320)) from None
        if any(leak in shown and leak not in text for leak in _LEAKS):
            raise _Escaped(shown[:300])

    return read


def _template_seeds() -> list[bytes]:
    return [
        (_DEMO / "chat_template.jinja").read_bytes(),
        b"{% for m in messages %}{{ bos_token }}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}",
        b"{%- set ns = namespace(found=false, n=0) -%}{% if tools is not none %}{{ tools | tojson }}{% else %}"
        b"{{ messages | tojson(indent=2) }}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endif %}",
        b"{% macro say(m, loud=false) -%}{{ m.content | upper if loud else m.content }}{%- endmacro %}"
        b"{% for m in messages if m.role != 'system' %}{{ say(m, loop.last) }}{% if loop.index0 > 3 %}{% break %}"
        b"{% endif %}{% endfor %}{{ raise_exception('no') if messages | length > 9 }}",
        b"{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}{{ dict(a=1).items() | list }}{{ 'a' ~ 1 }}",
        b"{% set x = messages[0]['content'].split(' ')[-1] %}{{ x.format(1) }}{{ range(3) | join(',') }}{# c #}",
    ]


_TEMPLATE_WORDS = _words(
    "{{ }} {% %} {%- -%} {# #} __class__ __mro__ __subclasses__() __globals__ __init__ __builtins__ .__ ['__class__'] "
    "|attr('__class__') |map(attribute='__class__') |list |tojson |join |safe |string |format |pprint |xmlattr "
    "|batch(99) |center(99) |indent(9) |replace('','x') |groupby('role') |sort |unique |sum |random "
    "self loop cycler joiner namespace() dict() range(99) lipsum raise_exception strftime_now caller super() varargs "
    "import include extends block macro call filter with autoescape set for if else elif endif endfor endmacro endset "
    "endcall recursive is in not ** ~ // %s .format( .join( .mro .gi_frame .f_globals .format_map( .__call__"
)


def _template_output(folder: Path) -> Read:
    from tpiedge.model.template import _answer
    from tpiedge.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(_DEMO)

    def read(data: bytes) -> None:
        tokenizer.encode(_answer(data, 0), add_special=False)

    return read


# --- packs, settings, testbeds


def _manifest(folder: Path) -> Read:
    from tpiedge.pack.layout import RowLayout  # noqa: F401  (imported here so that no input pays for it)
    from tpiedge.pack.manifest import load_manifest, manifest_text

    def read(data: bytes) -> None:
        (folder / "manifest.json").write_bytes(data)
        manifest_text(load_manifest(folder))

    return read


def _manifest_seeds() -> list[bytes]:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec
    from tpiedge.pack.manifest import Manifest, manifest_text
    from tpiedge.pack.precision import Precision
    from tpiedge.pack.storage import Storage

    found = []
    for tied, precision in ((True, Precision.F32), (False, Precision.Q4)):
        config = ModelConfig.from_huggingface(_CONFIG | {"tie_word_embeddings": tied, "num_hidden_layers": 2})
        storage = Storage.of(precision, tied=tied)
        manifest = Manifest(model_spec(config), storage, "demo", 2, "a" * 64, ("b" * 64,) * 2, "c" * 64)
        found.append(manifest_text(manifest))
    return found


def _settings(folder: Path) -> Read:
    from tpiedge.cli.configured import check_values, verbs_of
    from tpiedge.cli.main import cli
    from tpiedge.settings.check import check_settings
    from tpiedge.settings.file import read_settings
    from tpiedge.settings.resolve import resolve

    verbs = verbs_of(cli)
    path = folder / "config.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        file = read_settings(path)
        check_settings(file, verbs)
        problems = list(check_values(cli, file))
        if problems:
            raise UserError(problems[0])
        for verb in list(verbs)[:3]:
            resolve(verb, {}, file)

    return read


def _testbed(folder: Path) -> Read:
    from tpiedge.testbed.reading import parse_description

    return lambda data: parse_description(data.decode("utf-8", "replace"), "bed.toml")


_TOML_WORDS = _words(
    "[ ] [[ ]] = == \" ' \"\"\" ''' # { } , . true false inf nan -inf 0x 1e999 1_0 1979-05-27T07:32:00Z 07:32:00 "
    "\\u0000 \\UFFFFFFFF \\ud800 [run] [master] [worker] [common] [bench.decode] [defaults] [[device]] [[router]] "
    'nodes=3 memory="4GB" latency="5ms" loss="1%" rate="1Gbit/s" name="a" uplink="a" cpus=0.5 swap="1MiB"'
)


def _files(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(_ROOT.glob(pattern))]


# --- what arrives over sockets


def _message(folder: Path) -> Read:
    from tpiedge.transport.framing import CONTROL, FILES, TENSOR, read_frame
    from tpiedge.wire.codec import decode, encode

    def read(data: bytes) -> None:
        refusal = None
        for plane in (CONTROL, TENSOR, FILES):
            try:
                read_frame("w-1", data, plane)
            except ProtocolError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        message = decode(data[:64] if data[:1] == b"\xc1" else data)
        assert decode(encode(message)) == message

    return read


def _message_seeds() -> list[bytes]:
    from tests.unit.wire.golden import GOLDEN, padded

    return [padded(bytes.fromhex(written)) for _, written in GOLDEN]


def _body(folder: Path) -> Read:
    from tests.http.conftest import InstantTemplate
    from tpiedge.api.body import parse_object
    from tpiedge.api.errors import ApiError
    from tpiedge.api.limits import Limits
    from tpiedge.api.schema import read_chat, read_completion
    from tpiedge.model.tokenizer import Tokenizer
    from tpiedge.testing.service import FakeService

    service = FakeService(Tokenizer.open(_DEMO), InstantTemplate(), vocab_size=2048)
    limits = Limits.of_context(service.max_sequence)

    def read(data: bytes) -> None:
        try:
            values = parse_object(data, limits.body_values)
            (read_chat if "messages" in values else read_completion)(values, service, "r1")
        except ApiError as error:
            json.dumps(error.body()).encode()
            raise _Answered(json.dumps(error.message)) from None

    return read


class _Answered(Exception):
    """The client hears an error, as JSON: it need not be printable as it is."""


def _body_seeds() -> list[bytes]:
    chat = {"model": "babbler", "messages": _MESSAGES, "max_tokens": 5, "temperature": 0.5, "stream": True,
            "stream_options": {"include_usage": True}, "stop": ["a", "b"], "logprobs": True, "top_logprobs": 2,
            "logit_bias": {"5": -1.5}, "seed": 7, "top_p": 0.9, "n": 1, "user": "me",
            "chat_template_kwargs": {"enable_thinking": False}, "response_format": {"type": "text"}}  # fmt: skip
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "x"}]
    completion = {"model": "babbler", "prompt": "Once upon", "max_tokens": 3, "logprobs": 2, "echo": False,
                  "frequency_penalty": 0.5, "presence_penalty": -0.5, "top_k": 5, "ignore_eos": True}  # fmt: skip
    bodies = (chat, chat | {"messages": parts}, completion, completion | {"prompt": [1, 2, 3], "stop": None})
    return [json.dumps(body).encode() for body in bodies]


def _join_token(folder: Path) -> Read:
    from tpiedge.joining.tokens import parse_token

    return lambda data: parse_token(data.decode("utf-8", "replace"))


def _join_token_seeds() -> list[bytes]:
    from tpiedge.host.addresses import parse_address
    from tpiedge.joining.tokens import JoinToken
    from tpiedge.transport.keys import key_text

    token = JoinToken(key_text(bytes(range(32))), "a" * 26, parse_address("192.0.2.1:7070"))
    return [token.text.encode()]


PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        parser.name: parser
        for parser in (
            Parser(
                "safetensors", _safetensors, _safetensors_seeds, form=SAFETENSORS,
                words=_words("dtype shape data_offsets __metadata__ F64 F16 BF16 I8 BOOL F8_E4M3 { } [ ] , :"),
            ),
            Parser(
                "index", _index,
                lambda: [b'{"metadata":{"total_size":8},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}'],
                form=JSON, words=_words("weight_map a.safetensors ../a.safetensors /a.safetensors A.safetensors"),
            ),
            Parser(
                "gguf", _gguf, _gguf_seeds, form=GGUF,
                words=_words("GGUF general.alignment llama.block_count rope_freqs.weight llama qwen2"),
            ),
            Parser(
                "config", _config, lambda: [json.dumps(config).encode() for config in _CONFIGS], form=JSON,
                words=_words("rope_scaling rope_parameters factor yarn dynamic default attention_factor mscale"),
            ),
            Parser(
                "generation-config", _generation_config, form=JSON,
                seeds=lambda: [b'{"temperature":0.7,"top_k":40,"top_p":0.9,"eos_token_id":[1,2],"do_sample":true,'
                               b'"repetition_penalty":1.1,"min_p":0.05,"bos_token_id":1}'],
            ),
            Parser(
                "tokenizer", _tokenizer, _tokenizer_seeds, form=JSON,
                words=_words("type Sequence normalizers pattern String Regex content .* ^ (?=.) NFD NFKD Nmt "
                             "Precompiled ByteLevel Replace Prepend byte_fallback fuse_unk dropout ignore_merges Fuse"),
            ),
            Parser(
                "tokenizer-config", _tokenizer_config, form=JSON,
                seeds=lambda: [b'{"bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,'
                               b'"chat_template":[{"name":"default","template":"{{ 1 }}"}]}'],
                words=_words("tool_use add_eos_token unk_token chat_template default"),
            ),
            Parser(
                "template", _template, _template_seeds, form=TEXT, words=_TEMPLATE_WORDS, confined=True,
            ),
            Parser(
                "template-output", _template_output,
                lambda: [b'{"text": "<s> hello \\ud83d\\ude42"}', b'{"error": "line 1: no"}'], form=JSON,
                words=_words("text error"),
            ),
            Parser(
                "manifest", _manifest, _manifest_seeds, form=MANIFEST,
                words=_words("q8 q4 f32 bf16 precision embedding head layers version vectors_f32 transposed"),
            ),
            Parser("settings", _settings, _files("configs/*.toml"), form=TEXT, words=_TOML_WORDS),
            Parser("testbed", _testbed, _files("configs/testbeds/*.toml"), form=TEXT, words=_TOML_WORDS),
            Parser("message", _message, _message_seeds, refuses=(ProtocolError,), form=MESSAGEPACK),
            Parser(
                "body", _body, _body_seeds, refuses=(_Answered,), form=JSON,
                words=_words("role content text type image_url tool_calls tools suffix best_of logit_bias stop stream"),
            ),
            Parser("join-token", _join_token, _join_token_seeds, words=_words("tpi1_ _ : 65536 [::1] a-b.example")),
        )
    }
)  # fmt: skip
