"""Builds the native code and takes aliases and testbeds along; everything else is in pyproject.toml.

That of the kernels, the transport and the switch is a shared library each, with a C interface, loaded with ctypes.
Optional: without a C++ compiler the package installs without them, computes with torch, talks in Python and has no
switch. With TPIEDGE_REQUIRE_NATIVE=1 it does not install.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
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
    """Copies aliases and testbeds into the package; an editable install reads it where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            # Other files in configs/ are examples, and settings of the user's, with secrets.
            for path in Path("configs").glob("*/*.toml"):
                target = Path(self.build_lib, "tpiedge", path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


class BuildAtOnce(build_ext):
    """Compiles the sources of an extension on all processors."""

    def build_extension(self, ext: Extension) -> None:
        def compiled(source: str) -> list[str]:
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=ext.extra_compile_args,
                depends=ext.depends,
            )

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = [made for some in threads.map(compiled, ext.sources) for made in some]
        ext.depends, ext.extra_objects, ext.sources = [*ext.depends, *ext.sources], objects, []
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildAtOnce, "build_py": BuildWithConfigs},
    ext_modules=[native("tpiedge.kernels"), native("tpiedge.transport"), native("tpiedge.lab.testbed")],
)
