"""A process of its own that loads torch and the native kernels, and prints what they are.

Not in the doctor's process: a build for another processor does not raise, it is killed.
"""

import json
import sys


def main() -> None:
    """Print {"torch": version, "isa": instruction set or null}."""
    import torch

    from tpiedge.kernels.shared_library import kernel_library

    library = kernel_library()
    sys.stdout.write(json.dumps({"torch": torch.__version__, "isa": library.isa if library else None}))


if __name__ == "__main__":
    main()
