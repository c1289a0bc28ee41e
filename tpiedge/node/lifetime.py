"""The life of a node in its process: whatever ends it is said, to the log and to the master, and is the exit status."""

import os
import sys
import traceback

from tpiedge.errors import Cancelled, InternalError, OutOfMemory, PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.node.node import Node
from tpiedge.supervision import Supervisor


def run(bootstrap: NodeBootstrap) -> int:
    """Be a node until the master ends it; the exit status of the error that ended it, or 0."""
    with Supervisor(_end_at_once):
        node = Node(bootstrap)
        try:
            node.run()
        except Cancelled:
            return 0
        except TpiedgeError as error:
            return _end(node, error)
        except MemoryError:
            return _end(
                node, OutOfMemory(f"node {bootstrap.rank} ran out of memory: give it a smaller share")
            )
        except RuntimeError as error:
            if "allocate memory" in str(error):  # torch has no class of its own for the CPU
                return _end(node, OutOfMemory(f"node {bootstrap.rank} ran out of memory: {error}"))
            raise
        finally:
            node.close()
    return 0


def _end_at_once(error: InternalError) -> None:
    """The engine thread may wait for the one that failed. The master learns why from the log."""
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def _end(node: Node, error: TpiedgeError) -> int:
    # Written first: the master's answer to the report may be the end of this process.
    if not isinstance(error, PeerLost):
        traceback.print_exception(error)
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    node.report(error)
    return error.exit_code
