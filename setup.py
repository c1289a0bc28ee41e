"""Builds the native code and takes configs/ along; everything else is in pyproject.toml.

That of the kernels, the transport and the switch is a shared library each, with a C interface, loaded with ctypes.
Optional: without a C++ compiler the package installs without them, computes with torch, talks in Python and has no
switch. With TPIEDGE_REQUIRE_NATIVE=1 it does not install.
"""

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

COMPILE = [
    "-std=c++17",
    "-O3",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    # Whether a * b + c is fused must not depend on how the compiler unrolls: bits would differ.
    "-ffp-contract=off",
]


def native(package: str) -> Extension:
    """The library of one package, of all that its folder `native` has."""
    folder = Path(*package.split("."), "native")
    return Extension(
        f"{package}._native",
        sources=sorted(str(path) for path in folder.glob("*.cpp")),
        depends=sorted(str(path) for path in [*folder.glob("*.h"), *folder.glob("*.inl")]),
        extra_compile_args=COMPILE,
        extra_link_args=["-pthread"],
        language="c++",
        optional=os.environ.get("TPIEDGE_REQUIRE_NATIVE") != "1",
    )


class BuildWithConfigs(build_py):
    """Copies configs/ into the package; an editable install reads it where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree("configs", Path(self.build_lib, "tpiedge", "configs"), dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildWithConfigs},
    ext_modules=[native("tpiedge.kernels"), native("tpiedge.transport"), native("tpiedge.lab.testbed")],
)
