#!/usr/bin/env bash
# tokenizers 0.23.3, decoder ByteFallback: one byte that completes no character turns the whole run of byte tokens into
# U+FFFD, the characters before it that were complete, too. A server that shows each character as soon as it is complete
# has then shown text that the decoded whole does not contain.
#
# Seen: the bytes E4 BD A0 decode to one Chinese character; the same bytes followed by 41 (a complete "A") to that
# character and "A"; followed by FF to four times U+FFFD, one for each byte, where a UTF-8 decoder that replaces errors
# (Python's) gives the character and one U+FFFD.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers.decoders import ByteFallback

decoder = ByteFallback()
you = ["<0xE4>", "<0xBD>", "<0xA0>"]
found = [decoder.decode(you), decoder.decode([*you, "<0x41>"]), decoder.decode([*you, "<0xFF>"])]
usual = bytes((0xE4, 0xBD, 0xA0, 0xFF)).decode(errors="replace")
print(tokenizers.__version__, found, "Python:", ascii(usual))
assert found == ["\u4f60", "\u4f60A", "\ufffd" * 4], "tokenizers behaves otherwise now"
assert usual == "\u4f60\ufffd"
PYTHON
