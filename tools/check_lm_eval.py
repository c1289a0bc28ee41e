"""Compare the loglikelihoods that lm-eval gets of a server with those of transformers.

    .venv/bin/tpiedge master --model demo --precision f32 &
    .venv/bin/python tools/check_lm_eval.py [--url http://127.0.0.1:8080] [--model demo] [--folder tpiedge/model/demo]
        [--texts tpiedge/model/demo/held_out.txt] [--count 50] [--batch 8]

lm-eval is installed in the cache folder, in minutes. Its task: tell a text's second half from those of two others.
Printed: the number of scores, the largest difference, and disagreements about greedy choices. Exit status 1 for a
difference above 1e-3 or a disagreement.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGES = ("lm-eval[api]==0.4.13", "transformers")
TOLERANCE = 1e-3
_DEMO = Path(__file__).parents[1] / "tpiedge" / "model" / "demo"
_LIMIT_S = 3600.0
_WORDS = 60  # of a text at most


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="demo", help="as the server calls it")
    parser.add_argument("--folder", type=Path, default=_DEMO, help="the same model for transformers")
    parser.add_argument("--texts", type=Path, default=_DEMO / "held_out.txt", help="one a line")
    parser.add_argument("--count", type=int, default=50, help="of texts")
    parser.add_argument("--batch", type=int, default=8, help="prompts of a request")
    arguments = parser.parse_args()
    documents = list(_documents(arguments.texts.read_text(encoding="utf-8"), arguments.count))
    with tempfile.TemporaryDirectory() as place:
        samples = _evaluated(Path(place), documents, arguments)
    scored, worst, disagreements = _compared(samples, arguments.folder)
    sys.stdout.write(
        f"{scored} scores, largest difference {worst:.2g}, greedy or not told otherwise: {disagreements}\n"
    )
    return int(not scored or worst > TOLERANCE or disagreements > 0)


def _documents(text: str, count: int) -> Iterator[dict[str, object]]:
    """Yields each text's first half; its choices are the second halves of this text and the two after it."""
    halves = []
    for line in text.splitlines():
        words = line.split()[:_WORDS]
        if len(words) > 3:
            halves.append((" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])))
    for number, (first, _) in enumerate(halves[:count]):
        choices = [" " + halves[(number + more) % len(halves)][1] for more in range(3)]
        yield {"text": first, "choices": choices, "label": 0}


def _evaluated(
    folder: Path, documents: list[dict[str, object]], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns lm-eval's record of each document."""
    lines = folder / "texts.jsonl"
    lines.write_text("\n".join(map(json.dumps, documents)))
    task = {
        "task": "halves",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(lines)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / "halves.yaml").write_text(json.dumps(task))  # JSON is YAML
    model = {
        "model": arguments.model,
        "base_url": f"{arguments.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(arguments.folder.resolve()),
    }
    command: list[str | Path] = [
        _lm_eval(), "--model", "local-completions", "--tasks", "halves", "--include_path", folder,
        "--model_args", ",".join(f"{name}={value}" for name, value in model.items()),
        "--batch_size", str(arguments.batch), "--output_path", folder / "found", "--log_samples",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=_LIMIT_S, stdout=sys.stderr)
    (found,) = (folder / "found").rglob("samples_*.jsonl")
    return [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]


def _lm_eval() -> Path:
    """Returns the command, and installs it in its own environment if needed."""
    home = user_cache_path("tpiedge") / "lm-eval"
    command = home / "bin" / "lm_eval"
    if not command.is_file():
        sys.stderr.write(f"installing {', '.join(PACKAGES)} into {home}\n")
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True, timeout=_LIMIT_S)
    return command


def _compared(samples: list[dict[str, Any]], folder: Path) -> tuple[int, float, int]:
    """Returns the number of scores, their largest difference, and the number of disagreements about greedy choices."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scored, worst, disagreements = 0, 0.0, 0
    for sample in samples:
        for asked, told in zip(sample["arguments"].values(), sample["filtered_resps"], strict=True):
            context, choice = asked["arg_0"], asked["arg_1"]
            begun = tokenizer(context, add_special_tokens=False).input_ids
            ids = tokenizer(context + choice, add_special_tokens=False).input_ids
            with torch.no_grad():
                logits_TV = model(torch.tensor([ids])).logits[0].double()
            scores_TV = torch.log_softmax(logits_TV, dim=-1)[len(begun) - 1 : -1]
            own_T = scores_TV.gather(1, torch.tensor(ids[len(begun) :])[:, None])[:, 0]
            greedy = bool((scores_TV.max(dim=-1).values == own_T).all())
            scored += 1
            worst = max(worst, abs(float(told[0]) - float(own_T.sum())))
            disagreements += greedy != (str(told[1]) == "True")
    return scored, worst, disagreements


if __name__ == "__main__":
    sys.exit(main())
