"""A request for generation, as the master sends it to rank 0."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from tpiedge.wire.fields import MAX_ANSWER_TOKENS, MAX_GRAMMAR, MAX_PROMPT_TOKENS, U32, U64, Finite, Name

SCOPE_CHARACTERS: Final = 32
GrammarKind = Literal["json", "lark", "regex"]
"""A JSON schema, a context-free grammar of llguidance or llama.cpp, or a regular expression."""
Pooling = Literal["none", "mean", "last"]
"""The vector made of a prompt's final hidden states: none, their mean, or the last one."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token; `logprobs`: likeliest tokens to return."""

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
    """The texts that an answer may be; `text` is not parsed here. `begins`: the grammar applies only from this token to
    where the text may end. `thoughts`: tokens that open and close reasoning, in which the grammar does not begin."""

    kind: GrammarKind
    text: Annotated[str, Meta(max_length=MAX_GRAMMAR)]
    begins: U32 | None = None
    thoughts: Annotated[tuple[U32, ...], Meta(max_length=2)] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `prompt_ids` by at most `max_tokens`, until one of `stop_ids` is drawn (unless `ignore_eos`).

    `keep_prefix`: the KV cache may serve later requests of the same `scope`, an opaque name of a client ("": shared).
    `prompt_scores`: return the prompt's log probabilities. `answer_ids`: tokens of the answer from an earlier epoch;
    they count in `max_tokens`. `pooling`: return a vector (`Embedding`) instead. `grammar` restricts the answer."""

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
