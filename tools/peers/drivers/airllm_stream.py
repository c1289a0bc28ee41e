"""AirLLM, layer by layer from disk, in bf16 on the CPU. Runs in the peers' own environment.

    airllm_stream.py prepare CHECKPOINT FOLDER
    airllm_stream.py decode CHECKPOINT FOLDER THREADS TOKENS ID,ID,...

FOLDER takes AirLLM's own copy of the weights, one file per layer.
"""

import sys

import torch
from airllm import AutoModel
from greedy import decode


def main(how: str, checkpoint: str, folder: str, *rest: str) -> None:
    if how == "decode":
        torch.set_num_threads(int(rest[0]))
    model = AutoModel.from_pretrained(
        checkpoint, device="cpu", dtype=torch.bfloat16, layer_shards_saving_path=folder
    )
    if how == "decode":
        decode(model, [int(token) for token in rest[2].split(",")], int(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
