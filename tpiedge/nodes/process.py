"""Entry of a node process: `python -m tpiedge.nodes.process`.

It holds on to its lifeline before the heavy imports, so that a node whose parent dies meanwhile is gone at once.
"""

import os
import sys

from tpiedge.lifeline import guard
from tpiedge.nodes.bootstrap import NodeBootstrap

__all__ = ["main"]

_ORPHANED = 143


def main() -> int:
    """The exit status is that of the error that ended the node, or 0."""
    bootstrap = NodeBootstrap.from_line(sys.stdin.buffer.readline())
    guard(lambda: os._exit(_ORPHANED))
    from tpiedge.nodes.node import run  # imports torch

    return run(bootstrap)


if __name__ == "__main__":
    sys.exit(main())
