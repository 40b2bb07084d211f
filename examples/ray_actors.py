"""Ray actors that start with the kernels of their driver: without a compiler, a store, or a ``runtime_env``.

The driver puts a signed archive of its kernels into Ray's object store. Ray brings it to each node once, and each actor
puts what its node does not have yet into the node's cache.

    pip install sgljit-remote sgljit-activation ray
    python examples/ray_actors.py [--actors 4]

Here one machine stands for all nodes: each actor has a cache of its own, and may not compile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ray
import torch


@ray.remote(num_cpus=0)
class Engine:
    """An actor of an engine."""

    def __init__(self, kernels: bytes, cache: str) -> None:
        os.environ.update(SGLJIT_CACHE_DIR=cache, SGLJIT_JIT="error")  # nothing has asked for a kernel yet
        with tempfile.NamedTemporaryFile() as file:
            file.write(kernels)
            file.flush()
            _sgljit_remote("import", file.name)  # fails where no key of SGLJIT_TRUSTED_KEYS has signed them

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Call an op, as the layers of a model do."""
        from sgljit_core import ops

        return ops["activation"].silu_and_mul(x)

    def counts(self) -> dict[str, dict[str, int]]:
        """Where the kernels of this process came from."""
        import sgljit_core

        stats = sgljit_core.stats()
        return {"hits": stats.hits, "builds": stats.builds}


def archive(directory: Path, x: torch.Tensor) -> bytes:
    """Compile what a call needs, and sign it."""
    from sgljit_core import ops

    os.environ["SGLJIT_CACHE_DIR"] = str(directory / "built")
    ops["activation"].silu_and_mul(x)
    _sgljit_remote("export", directory / "kernels", "--sign", directory / "release")
    return (directory / "kernels").read_bytes()


def _sgljit_remote(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "sgljit_remote", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def main() -> None:
    """Start actors, compare what they compute, and show that an altered archive is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # On a cluster the public key, and the variable that names it, are in the image of all nodes.
        _sgljit_remote("key", "new", directory / "release")
        os.environ["SGLJIT_TRUSTED_KEYS"] = str(directory / "release.pub")
        ray.init(num_cpus=options.actors, include_dashboard=False)

        x = torch.randn(4, 64)
        content = archive(directory, x)
        held = ray.put(content)
        print(f"{len(content)} bytes of kernels are in the object store")
        engines = [Engine.remote(held, str(directory / f"node-{number}")) for number in range(options.actors)]
        results = ray.get([engine.run.remote(x) for engine in engines])
        expected = torch.nn.functional.silu(x[:, :32]) * x[:, 32:]
        for result in results:
            torch.testing.assert_close(result, expected)
        for number, counts in enumerate(ray.get([engine.counts.remote() for engine in engines])):
            print(f"actor {number}: {counts}")

        altered = bytearray(content)
        altered[len(altered) // 2] ^= 1
        try:
            ray.get(Engine.remote(ray.put(bytes(altered)), str(directory / "other")).counts.remote())
        except ray.exceptions.RayActorError as error:
            print(next(line for line in str(error).splitlines() if "refused" in line))
        ray.shutdown()


if __name__ == "__main__":
    main()
