#!/usr/bin/env bash
# gguf 0.19.0: MXFP4 has no NaN, though its scale has a code for it. One weight that is NaN makes quantize() write a block
# of 32 zeros, without a warning that names it; Q4_0 and Q8_0 make the block NaN, so that somebody notices. And the scale
# 255, which is NaN in the OCP's specification of E8M0, is read as 2^127 by dequantize(): weights of 1e38, or infinite.
#
# Seen: 1, NaN and thirty zeros come back as 32 zeros from MXFP4, and as NaN from Q8_0; a block with the scale 255 and the
# codes 1 and 2 is 1.7e38 and infinity.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

weights = np.zeros((1, 32), np.float32)
weights[0, :2] = 1, np.nan
back = {kind.name: dequantize(quantize(weights, kind), kind)[0] for kind in (Kind.MXFP4, Kind.Q8_0)}
block = np.zeros((1, 17), np.uint8)
block[0, :2] = 255, 0x21
large = dequantize(block, Kind.MXFP4)[0, [0, 16]]
print(version("gguf"), {name: values[:3].tolist() for name, values in back.items()}, large.tolist())
assert not back["MXFP4"].any() and np.isnan(back["Q8_0"]).all(), "gguf quantises NaN otherwise now"
assert 1.7e38 < large[0] < np.inf and large[1] == np.inf, "gguf reads the scale 255 otherwise now"
PYTHON
