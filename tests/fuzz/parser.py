"""The interface of a parser of foreign bytes to the fuzzer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.forms import Form
from tpiedge.errors import UserError

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
DEMO = ROOT / "tpiedge" / "model" / "demo"
#: A conversation that asks for trouble.
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{{ 7 * 7 }} <s> hello"}]
#: A small model's config.json.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": True,
}  # fmt: skip

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


def words_of(text: str) -> tuple[bytes, ...]:
    """The words between its blanks."""
    return tuple(word.encode() for word in text.split())
