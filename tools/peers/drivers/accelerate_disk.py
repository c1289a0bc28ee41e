"""accelerate's offload to disk, in bf16 on the CPU. Runs in the peers' own environment.

    accelerate_disk.py prepare CHECKPOINT OFFLOAD
    accelerate_disk.py disk_offload CHECKPOINT OFFLOAD THREADS TOKENS ID,ID,...
    accelerate_disk.py device_map CHECKPOINT RAM_BYTES THREADS TOKENS ID,ID,...

disk_offload keeps every weight on disk; device_map keeps the first RAM_BYTES of the weights in memory.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import disk_offload, init_empty_weights
from accelerate.utils import offload_state_dict
from greedy import decode
from transformers import AutoConfig, AutoModelForCausalLM


def prepare(checkpoint: str, folder: str) -> None:
    """Write each weight to a file of its own, as disk_offload does for a model in memory."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    offload_state_dict(folder, model.state_dict())


def from_files(checkpoint: str, folder: str) -> Any:
    """The model without weights, each of which is read from its file when it is used."""
    if not (Path(folder) / "index.json").is_file():
        raise SystemExit(f"{folder} was not prepared")
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint), dtype=torch.bfloat16)
    return disk_offload(model.eval(), folder, execution_device=torch.device("cpu"))


def from_map(checkpoint: str, ram_bytes: str) -> Any:
    """The first layers in memory, the others read from the checkpoint's own files when they are used."""
    return AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.bfloat16,
        device_map="sequential",
        max_memory={"cpu": int(ram_bytes)},
        offload_folder=Path(checkpoint) / "offload",
    ).eval()


def main(how: str, checkpoint: str, place: str, *rest: str) -> None:
    if how == "prepare":
        prepare(checkpoint, place)
        return
    threads, tokens, prompt = rest
    torch.set_num_threads(int(threads))
    model = from_files(checkpoint, place) if how == "disk_offload" else from_map(checkpoint, place)
    decode(model, [int(token) for token in prompt.split(",")], int(tokens))


if __name__ == "__main__":
    main(*sys.argv[1:])
