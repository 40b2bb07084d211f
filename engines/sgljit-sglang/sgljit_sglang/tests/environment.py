"""Make an environment with SGLang's own modules and this checkout's sgljit: ``python environment.py DIRECTORY``.

The wheel of SGLang is unpacked without what it requires, as no build of that runs without a GPU; what its modules
import is installed, and a stand-in takes the place of torchvision and of SGLang's compiled kernels.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

SGLANG = "0.5.23"
PLATFORM = ("--python-version", "3.12", "--platform", "manylinux_2_34_x86_64", "--only-binary", ":all:")
ROOT = Path(__file__).resolve().parents[4]
PROJECTS = [
    "",
    "plugins/sgljit-activation",
    "plugins/sgljit-norm",
    "plugins/sgljit-hicache",
    "plugins/sgljit-kvcache",
    "plugins/sgljit-moe",
    "plugins/sgljit-quant",
    "plugins/sgljit-rope",
    "engines/sgljit-engines",
    "engines/sgljit-sglang",
    "tools/sgljit-tools",  # whose plugin of pytest skips what needs a GPU
]
TORCH = "torch==2.13.0"
IMPORTED = Path(__file__).with_name("environment.txt")

STAND_IN = '''"""A stand-in: every name of this package, and of its modules, is a class without content."""
import importlib.machinery
import sys
import types


class Nothing(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(name, Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        return Module(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(Finder)
__getattr__ = Module(__name__).__getattr__
'''


def unpack(wheel: Path, site: Path) -> None:
    """Put SGLang's modules and the stand-ins into a directory of packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name, distribution in (("torchvision", "torchvision-0.29.0"), ("sgl_kernel", "sglang_kernel-0.4.10")):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(STAND_IN)
        (site / f"{distribution}.dist-info").mkdir()
        title, version = distribution.split("-")
        metadata = f"Metadata-Version: 2.1\nName: {title}\nVersion: {version}\n"
        (site / f"{distribution}.dist-info" / "METADATA").write_text(metadata)


def make(directory: Path) -> Path:
    """Make the environment; its interpreter.

    Raises:
        subprocess.CalledProcessError: pip failed; its ``stderr`` says why.
    """
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"

    def pip(*arguments: str | Path) -> None:
        command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True)

    pip("install", "--no-deps", "--only-binary", ":all:", "--requirement", IMPORTED)
    pip("install", TORCH)  # with what its build for this system needs
    pip("install", "--no-deps", "--no-build-isolation", *(ROOT / project for project in PROJECTS))
    wheels = directory / "wheels"
    pip("download", "--no-deps", *PLATFORM, "--dest", wheels, f"sglang=={SGLANG}")
    (site,) = directory.glob("lib/python*/site-packages")
    unpack(next(wheels.glob("*.whl")), site)
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
