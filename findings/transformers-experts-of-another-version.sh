#!/usr/bin/env bash
# transformers 5.23.0 and 4.57.6: a Qwen3 MoE saved by version 5 has another number of experts for version 4. Version 5 reads
# `num_experts`, which the published files have, and writes `num_local_experts`. Version 4 keeps that as an unknown key,
# takes its own default of 128 for `num_experts`, and says nothing. OLMoE, made of the same parts, keeps its key.
#
# Seen: 16 experts become 128 for Qwen3MoeConfig, and stay 16 for OlmoeConfig.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 5.23.0 4.57.6; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "transformers==$version"
done
"$folder/5.23.0/bin/python" - "$folder" <<'PYTHON'
import sys

from transformers import OlmoeConfig, Qwen3MoeConfig

for kind in (Qwen3MoeConfig, OlmoeConfig):
    kind(num_experts=16).save_pretrained(f"{sys.argv[1]}/{kind.__name__}")
PYTHON
"$folder/4.57.6/bin/python" - "$folder" <<'PYTHON'
import sys

import transformers
from transformers import AutoConfig

names = ("Qwen3MoeConfig", "OlmoeConfig")
found = {name: AutoConfig.from_pretrained(f"{sys.argv[1]}/{name}").num_experts for name in names}
print(transformers.__version__, found)
assert found == {"Qwen3MoeConfig": 128, "OlmoeConfig": 16}, "transformers behaves otherwise now"
PYTHON
