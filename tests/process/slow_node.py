"""A node that is slow and never silent: `python -m tests.process.slow_node`, in place of
`tpiedge.node.fork_server`.

Of several nodes. While the file is there that NODE_FAULT_FILE names, the FFN of each layer takes it SLOWER_S more, as
its counters say, too: many times what it takes by itself, whatever else the machine does.
"""

import os
import sys
import time
from pathlib import Path

from torch import Tensor

from tests.process.faulty import NODE_FAULT_FILE, SLOWER_S
from tpiedge.engine.forward import Engine
from tpiedge.memory.weights import BlockWeights
from tpiedge.node.fork_server import main


def _slow_down(path: Path) -> None:
    ffn = Engine._ffn

    def ffn_later(forward: Engine, x_CH: Tensor, weights: BlockWeights, layer: int) -> Tensor | None:
        if path.exists():
            time.sleep(SLOWER_S)
        return ffn(forward, x_CH, weights, layer)

    Engine._ffn = ffn_later


if __name__ == "__main__":
    _slow_down(Path(os.environ[NODE_FAULT_FILE]))
    sys.exit(main())
