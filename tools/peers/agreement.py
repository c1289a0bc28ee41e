"""Compares the logits of llama.cpp and of tpiedge: one GGUF file, the same tokens.

llama.cpp's program `llama-results` reads a text and writes its tokens and all logits in f32. Shapes: T tokens, V
vocabulary.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader

from tpiedge.lab.eval_agreement import ROWS, Comparison, open_engine
from tpiedge.lab.eval_text import documents_of
from tpiedge.local.layout import Layout
from tpiedge.local.prepare import prepare

from .install import build_llama, checked


def compare_agreement(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures for the beginning of each document. Raises UserError, NotInstalled, OutOfMemory."""
    model = prepare(str(arguments.model), None, arguments.compute, arguments.cache)
    context = arguments.context
    name, documents = documents_of(arguments.text)
    program = build_llama(arguments.work, "llama-results")
    found, equal = Comparison(), 0
    with (
        tempfile.TemporaryDirectory(dir=arguments.work) as folder,
        open_engine(model, Layout(1, None, arguments.threads, None), context) as engine,
    ):
        prompt, out = Path(folder) / "text", Path(folder) / "logits"
        flags = {"-m": arguments.model, "-f": prompt, "--output": out, "-t": arguments.threads, "-ngl": 0}
        flags |= {"-c": context, "-b": context}
        for document in documents[: arguments.documents]:
            own_ids = model.tokenizer.encode(document.strip(), parse_special=False)[:context]
            prompt.write_text(model.tokenizer.decode(own_ids), encoding="utf-8")
            checked([str(program), *(str(word) for pair in flags.items() for word in pair)])
            ids, peer_TV = read_logits(out)
            equal += ids == tuple(own_ids)
            own_TV = torch.cat([rows.clone() for rows in engine.logits(ids)])
            for start in range(0, len(ids) - 1, ROWS):
                place = slice(start, min(start + ROWS, len(ids) - 1))
                found.add(peer_TV[place], own_TV[place], ids[1:][place])
    counts = {"documents": len(documents[: arguments.documents]), "with_own_tokens": equal}
    return {
        **model.described(),
        "text": name,
        **counts,
        "threads": arguments.threads,
        **found.described(),
    }


def read_logits(path: Path) -> tuple[tuple[int, ...], torch.Tensor]:
    """Reads the token ids and logits [T, V] of one text. The file names the logits' dimensions in the other order."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}
    ids = tuple(tensors["tokens"].tolist())
    return ids, torch.from_numpy(tensors["logits"].reshape(len(ids), -1))
