"""What the master asks rank 0 to generate."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from tpiedge.wire.fields import MAX_ANSWER_TOKENS, MAX_GRAMMAR, MAX_PROMPT_TOKENS, U32, U64, Finite, Name

SCOPE_CHARACTERS: Final = 32
GrammarKind = Literal["json", "lark", "regex"]
"""A JSON schema, a context-free grammar as llguidance or llama.cpp take it, or a regular expression."""
Pooling = Literal["none", "mean", "last"]
"""What becomes of the final hidden states of a prompt's positions: nothing, their mean, or the last one."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; unless told otherwise, the likeliest one.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    `logprobs`: how many of the most likely tokens come back with their log probability.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    top_k: U32 = 0
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.0, le=1e6)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    logit_bias: Annotated[tuple[tuple[U32, Finite], ...], Meta(max_length=1024)] = ()
    seed: U64 = 0
    logprobs: Annotated[int, Meta(ge=0, le=32)] = 0


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer may be: the texts that `text` describes. It comes from a client, and nobody has read it.

    `begins`: in place of that, the answer is free, but for what follows this token each time that it is drawn, to the
    first place where `text` may end. `thoughts`: the tokens that open and close thoughts, in which it does not begin.
    """

    kind: GrammarKind
    text: Annotated[str, Meta(max_length=MAX_GRAMMAR)]
    begins: U32 | None = None
    thoughts: Annotated[tuple[U32, ...], Meta(max_length=2)] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `prompt_ids` by at most `max_tokens`, until one of `stop_ids` is drawn (unless `ignore_eos`).

    `keep_prefix`: the KV cache of the prompt may be kept for a later request of the same `scope` that starts alike. A
    scope is an opaque text that stands for a client (`api/guard.py`); an empty one is one for all that have none.
    `prompt_scores`: the log probabilities of the prompt's own tokens come back too.
    `answer_ids`: the first tokens of the answer, which an earlier epoch drew; they count as part of `max_tokens` and do
    not come back.
    `pooling`: in place of an answer, of which there is no token, a vector made of the prompt comes back (`Embedding`).
    `grammar`: the answer is one of its texts, or, where `max_tokens` end it, the beginning of one.
    """

    id: Name
    prompt_ids: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]
    max_tokens: U32
    sampling: Sampling = Sampling()
    stop_ids: Annotated[tuple[U32, ...], Meta(max_length=1024)] = ()
    ignore_eos: bool = False
    keep_prefix: bool = False
    prompt_scores: bool = False
    answer_ids: Annotated[tuple[U32, ...], Meta(max_length=MAX_ANSWER_TOKENS)] = ()
    pooling: Pooling = "none"
    grammar: Grammar | None = None
    scope: Annotated[str, Meta(max_length=SCOPE_CHARACTERS)] = ""
