import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_shipped_held_out_text_is_reproducible(tmp_path: Path) -> None:
    made = tmp_path / "held_out.txt"
    subprocess.run([sys.executable, ROOT / "tools" / "demo_held_out.py", made], check=True, timeout=50)
    assert made.read_bytes() == (ROOT / "tpiedge" / "model" / "demo" / "held_out.txt").read_bytes()
