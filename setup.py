"""Builds the native kernels; everything else is in pyproject.toml.

They are one shared library with a C interface, loaded with ctypes. Optional: without a C++ compiler the
package installs without them and computes with torch.
"""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("tpiedge/kernels/native")

setup(
    ext_modules=[
        Extension(
            "tpiedge.kernels._native",
            sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
            depends=sorted(str(path) for path in [*FOLDER.glob("*.h"), *FOLDER.glob("*.inl")]),
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-Wall",
                "-Wextra",
                "-fvisibility=hidden",
                # Whether a * b + c is fused must not depend on how the compiler unrolls: bits would differ.
                "-ffp-contract=off",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
