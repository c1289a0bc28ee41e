"""Train the small model that ships with tpiedge: `python tools/train_demo_model.py --out tpiedge/model/demo`.

The corpus is generated (`demo_corpus`), the tokenizer is trained on it, and a Llama of some millions of
parameters learns it in f32 on one CPU core; the checkpoint is rounded to bf16. The same seed, steps and
threads on the same machine give the same weights. With `--experts 8` the model is a mixture (Qwen3-MoE) of
which each token needs as many parameters. Needs transformers, which tpiedge itself does not.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.demo_corpus import Document, documents

BOS, EOS, END = "<|bos|>", "<|eos|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS = (BOS, EOS, END, *ROLES.values())
VOCABULARY = 2048
MAX_POSITIONS = 1024
IGNORED = -100
BALANCE = 0.01
"""Weight of the loss for experts that are chosen too often."""
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""
PROMPTS = ("Once upon a time", "The little boat", "One morning, Anna", "In the forest", "Dear Tom,")
QUESTIONS = (
    "Tell me a story about a fox.",
    "What is the colour of the sky?",
    "Who are you?",
    "What does a cow eat?",
)
README = """\
# The demo model of tpiedge

A {architecture} of {parameters:,} parameters (bf16) that tells short stories in simple English and answers a few
kinds of simple questions. It was made by `tools/train_demo_model.py` from text that the tool itself generates
(seed {seed}, {steps:,} steps, {tokens:,} tokens); no text from elsewhere was used. It knows nothing about the
world beyond that text.

Licence: Apache-2.0, as the rest of tpiedge.
"""


@dataclass(frozen=True)
class Sample:
    """Token ids of one document and, at each position, whether the model has to predict that token."""

    ids: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right; `labels_BT` is `IGNORED` where nothing is learned; `tokens` omits pads."""

    ids_BT: torch.Tensor
    labels_BT: torch.Tensor
    tokens: int


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise LookupError(f"the tokenizer has no token {token!r}; add it to SPECIAL_TOKENS and train again")
    return found


def train_tokenizer(seed: int, count: int = 12_000) -> Tokenizer:
    """Returns byte-level BPE trained on `count` documents; it holds all 256 bytes, so any text makes the round trip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = itertools.islice(documents(seed), count)
    texts = (text for doc in sample for text in (doc.text, *(m.content for m in doc.messages)))
    tokenizer.train_from_iterator(texts, trainer)
    bos = token_id(tokenizer, BOS)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, bos)]
            ),
        ]
    )
    return tokenizer


def encode(document: Document, tokenizer: Tokenizer) -> Sample:
    """Returns a sample. Plain text is learned whole; in a chat only the assistant's words and end tokens are."""
    if not document.messages:
        ids = [*tokenizer.encode(document.text).ids, token_id(tokenizer, EOS)]
        return Sample(ids, [True] * len(ids))
    ids, learned = [token_id(tokenizer, BOS)], [False]
    for message in document.messages:
        text = tokenizer.encode(message.content, add_special_tokens=False).ids
        body = [*text, token_id(tokenizer, END)]
        ids += [token_id(tokenizer, ROLES[message.role]), *body]
        learned += [False] + [message.role == "assistant"] * len(body)
    return Sample(ids, learned)


def batches(tokenizer: Tokenizer, seed: int, batch_tokens: int) -> Iterator[Batch]:
    """Yields endless batches of at most `batch_tokens` tokens; documents of like length share a batch."""
    rng = random.Random(seed)
    stream = documents(seed)
    while True:
        pool = [encode(document, tokenizer) for document in itertools.islice(stream, 2048)]
        pool = sorted((s for s in pool if len(s.ids) <= MAX_POSITIONS), key=lambda s: len(s.ids))
        ready, rows = list[Batch](), list[Sample]()
        for sample in pool:
            if rows and (len(rows) + 1) * len(sample.ids) > batch_tokens:
                ready.append(_stack(rows))
                rows = []
            rows.append(sample)
        ready.append(_stack(rows))
        rng.shuffle(ready)
        yield from ready


def _stack(rows: list[Sample]) -> Batch:
    # Padding stands on the right, where a causal model cannot see it from the tokens that count.
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED, dtype=torch.long)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = torch.tensor(row.ids)
        kept = [i if learned else IGNORED for i, learned in zip(row.ids, row.learned, strict=True)]
        labels[at, : len(row.ids)] = torch.tensor(kept)
    return Batch(ids, labels, sum(len(row.ids) for row in rows))


def build_model(tokenizer: Tokenizer, experts: int = 0) -> PreTrainedModel:
    """Returns a Llama, or a Qwen3-MoE in which each token chooses two of `experts`."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.04,
        "tie_word_embeddings": True,
        "bos_token_id": token_id(tokenizer, BOS),
        "eos_token_id": token_id(tokenizer, EOS),
    }
    if not experts:
        return LlamaForCausalLM(LlamaConfig(**shape))
    of_experts: dict[str, Any] = {
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
    }
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**shape, **of_experts, norm_topk_prob=True, output_router_logits=True)
    )


def loss_of(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    found = model(input_ids=batch.ids_BT, use_cache=False)
    expected = batch.labels_BT[:, 1:].flatten()
    loss = cross_entropy(found.logits[:, :-1].flatten(0, 1), expected, ignore_index=IGNORED)
    unbalanced = getattr(found, "aux_loss", None)  # least if all experts are chosen equally often
    return loss if unbalanced is None else loss + BALANCE * unbalanced


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Returns a linear warm-up over the first twentieth, then a cosine down to a hundredth of `peak`."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def make_optimizer(model: PreTrainedModel) -> torch.optim.Optimizer:
    """Returns AdamW, without weight decay for the norms."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def train(model: PreTrainedModel, tokenizer: Tokenizer, args: argparse.Namespace) -> int:
    """Trains in place and prints the progress; returns the number of tokens seen, padding not counted."""
    optimizer = make_optimizer(model)
    tokens, smooth, started = 0, math.log(VOCABULARY), time.monotonic()
    stream = batches(tokenizer, args.seed + 1, args.batch_tokens)
    for step, batch in enumerate(itertools.islice(stream, args.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.peak)
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += batch.tokens
        smooth += 0.02 * (loss.item() - smooth)
        if step % 50 == 0 or step == args.steps - 1:
            elapsed = time.monotonic() - started
            eta_min = elapsed / (step + 1) * (args.steps - step - 1) / 60
            rate = tokens / elapsed
            print(f"step {step}  loss {smooth:.3f}  {rate:.0f} tokens/s  ETA {eta_min:.1f} min", flush=True)
    return tokens


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokenizer: Tokenizer, seed: int) -> float:
    """Returns the mean loss over some batches of documents from a stream that was not trained on."""
    losses = [loss_of(model, batch).item() for batch in itertools.islice(batches(tokenizer, seed, 2048), 20)]
    return sum(losses) / len(losses)


def save(model: PreTrainedModel, tokenizer: Tokenizer, readme: str, out: Path) -> None:
    """Writes an ordinary Hugging Face folder, with weights rounded to bf16."""
    out.mkdir(parents=True, exist_ok=True)
    eos = [token_id(tokenizer, EOS), token_id(tokenizer, END)]
    model.generation_config = GenerationConfig(
        bos_token_id=token_id(tokenizer, BOS), eos_token_id=eos, pad_token_id=eos[0]
    )
    model.bfloat16().save_pretrained(out)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    wrapped.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    (out / "README.md").write_text(readme, encoding="utf-8")


@torch.no_grad()
def greedy(model: PreTrainedModel, ids: list[int], stop: set[int], limit: int) -> list[int]:
    """Returns the greedy continuation of `ids`, up to an end token or `limit` tokens."""
    made = list[int]()
    while len(made) < limit and not (made and made[-1] in stop):
        logits_V = model(input_ids=torch.tensor([ids + made]), use_cache=False).logits[0, -1]
        made.append(int(logits_V.argmax()))
    return made


def show_samples(out: Path, limit: int) -> None:
    """Prints answers of the saved checkpoint, whose bf16 weights are computed in f32."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    model.train(False)
    stop = {token_id(tokenizer, EOS), token_id(tokenizer, END)}
    starts = [(prompt, tokenizer.encode(prompt).ids) for prompt in PROMPTS]
    for question in QUESTIONS:
        text = f"{BOS}{ROLES['user']}{question}{END}{ROLES['assistant']}"
        starts.append((f"{question} ->", tokenizer.encode(text, add_special_tokens=False).ids))
    for shown, ids in starts:
        made = greedy(model, ids, stop, limit)
        ending = tokenizer.id_to_token(made[-1]) if made[-1] in stop else "..."
        print(f"\n{shown}{tokenizer.decode(made)} {ending} [{len(made)} tokens]")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train tpiedge's demo model.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--experts", type=int, default=0, help="of each layer [default: 0, an FFN instead]")
    parser.add_argument("--batch-tokens", type=int, default=1792, help="tokens in one step, at most")
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(args.seed)
    model = build_model(tokenizer, args.experts)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {tokenizer.get_vocab_size()} tokens")
    tokens = train(model, tokenizer, args)
    print(f"held-out loss {held_out_loss(model, tokenizer, args.seed + 2):.3f}, {tokens:,} tokens seen")
    readme = README.format(
        architecture="mixture (Qwen3-MoE)" if args.experts else "Llama",
        parameters=parameters,
        seed=args.seed,
        steps=args.steps,
        tokens=tokens,
    )
    save(model, tokenizer, readme, args.out)
    show_samples(args.out, limit=120)


if __name__ == "__main__":
    main()
