"""Builds a case's checkpoint and runs transformers on it, which takes seconds to import: only what uses it does.

Shape legend: T prompt positions, G generated tokens, V vocabulary.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.reference.cases import Case

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


GENERATED = 16

_EAGER: Any = {"attn_implementation": "eager", "experts_implementation": "eager"}
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Reference:
    """An answer of transformers in f32 arithmetic, eager attention, one thread, with its KV cache.

    `folder`: the checkpoint. `greedy_ids`: GENERATED tokens; the end token is an ordinary one. `logits_TV`: at every
    position of the prompt. `greedy_logits_GV`: row g chose greedy_ids[g], so its first row is the last of `logits_TV`.
    `min_margin`: the least difference of the best two over the greedy steps.
    """

    case: Case
    folder: Path
    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    logits_TV: Logits
    greedy_logits_GV: Logits
    min_margin: float


def reference(case: Case, folder: Path) -> Reference:
    """Build the checkpoint of `case` in the new folder `folder` and run transformers on it."""
    with _one_thread(), torch.inference_mode():
        build(case, folder)
    return answered(case, folder)


def answered(case: Case, folder: Path) -> Reference:
    """Run transformers with the prompt of `case` on the checkpoint in `folder`."""
    with _one_thread(), torch.inference_mode():
        model = _load(folder)
        prompt_ids = _prompt(case)
        logits_TV, greedy_logits_GV = _greedy(model, prompt_ids)
    best_two = np.sort(greedy_logits_GV, axis=-1)[:, -2:]
    return Reference(
        case=case,
        folder=folder,
        prompt_ids=prompt_ids,
        greedy_ids=tuple(greedy_logits_GV.argmax(-1).tolist()),
        logits_TV=logits_TV,
        greedy_logits_GV=greedy_logits_GV,
        min_margin=float((best_two[:, 1] - best_two[:, 0]).min()),
    )


def build(case: Case, folder: Path) -> None:
    """Write the checkpoint of `case`: config.json and safetensors, no tokenizer."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(**case.config)
    with torch.random.fork_rng(devices=[]):  # its initial values are replaced, the caller's generator is not
        model = _kind(config).from_config(config, dtype=torch.float32, **_EAGER)
    _draw_parameters(model, case.seed)
    model.to(_DTYPES[case.dtype]).save_pretrained(folder, max_shard_size=case.shard_size or "1GB")
    if case.published_keys:
        _write_published_keys(folder / "config.json")
    if case.written:
        _write_over(folder / "config.json", case.written)


def logits(folder: Path, ids: tuple[int, ...], changes: Mapping[str, object]) -> Logits:
    """Logits [T, V] of transformers for `ids`, with the configuration changed by `changes`."""
    with _one_thread(), torch.inference_mode():
        return _load(folder, changes)(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def hidden_states(folder: Path, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """[T, H] after the final norm."""
    with _one_thread(), torch.inference_mode():
        model = _load(folder).base_model
        states: NDArray[np.float32] = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()
    return states


def _draw_parameters(model: "PreTrainedModel", seed: int) -> None:
    """Draws all parameters at random: zero biases and unit norms hide errors.

    Large queries and keys make attention uneven, large vocabulary matrices set the best two logits apart, large blocks
    keep a tied model from repeating tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    has_sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    ends_in_norms = any("pre_feedforward" in name for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("sinks"):
            values = noise
        elif name.endswith("bias"):
            values = 0.3 * noise
        elif "norm" in name or parameter.ndim == 1:  # begins as ones, or as zeros where 1 is added
            values = parameter.detach() + 0.25 * noise.clamp(-2, 2)
            values += 2.0 if ends_in_norms and ".post_" in name else 0.0
            values *= len(values) ** 0.5 if name.endswith("router.scale") else 1.0
        else:
            gain = 1.0 if any(part in name for part in ("v_proj", "gate_proj", "up_proj")) else 2.0
            gain *= 4.0 if has_sinks and "gate_up_proj" in name else 1.0  # what limits gpt-oss's activations
            values = gain * noise / parameter.shape[1] ** 0.5
        with torch.no_grad():
            parameter.copy_(values)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.copy_(0.6 + 0.8 * torch.rand(buffer.shape, generator=generator))


def _write_over(path: Path, changes: Mapping[str, object]) -> None:
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    text |= changes
    for name in [name for name, value in changes.items() if value is None]:
        del text[name]
    path.write_text(json.dumps(config, indent=2))


def _write_published_keys(path: Path) -> None:
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    kind_key = (
        "rope_type" if kind == "llama3" else "type"
    )  # Llama 3.1 was published after the key was renamed
    config["rope_scaling"] = None if kind == "default" else {kind_key: kind} | rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def _load(folder: Path, changes: Mapping[str, object] | None = None) -> "PreTrainedModel":
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    for key, value in (changes or {}).items():
        setattr(config.get_text_config(), key, value)
    model: PreTrainedModel = _kind(config).from_pretrained(
        folder, config=config, dtype=torch.float32, **_EAGER
    )
    return model.eval()


def _kind(config: "PreTrainedConfig") -> Any:
    """Returns the class of the model: a causal one, or one with images that transformers does not list as causal."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if is_causal else AutoModelForImageTextToText


def _prompt(case: Case) -> tuple[int, ...]:
    text: Any = case.config.get("text_config", case.config)
    generator = torch.Generator().manual_seed(case.seed + 1_000_000)
    return tuple(torch.randint(3, text["vocab_size"], (case.prompt_length,), generator=generator).tolist())


def _greedy(model: "PreTrainedModel", prompt_ids: tuple[int, ...]) -> tuple[Logits, Logits]:
    """Logits at every prompt position, and of every greedy step. (generate() would stop at the end token.)

    LongRoPE turns all keys in another way beyond the original context: each step computes them again.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    keeps = rope.get("rope_type") != "longrope"
    out = model(torch.tensor([prompt_ids]), use_cache=keeps)
    logits_TV = out.logits[0].numpy()
    rows, ids = [logits_TV[-1]], list(prompt_ids)
    while len(rows) < GENERATED:
        ids.append(int(rows[-1].argmax()))
        if keeps:
            out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        else:
            out = model(torch.tensor([ids]), use_cache=False)
        rows.append(out.logits[0, -1].numpy())
    return logits_TV, np.stack(rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tiny products lose by more threads, and the numbers must not depend on the computer's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
