"""One system call fails, once: every kind, every call of it below the cache and its like, every errno.

As SQLite tests its own. A fork server has imported everything, so that a fault costs two short processes: one in which
it happens, and one that looks whether all is well without. The C++ compiler is a script that copies a finished library.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "faults"

# By kind of call, the errnos that are tried at each call. Neither the project nor Python tells the members of
# a class apart, so they take turns from call to call.
ERRNOS: dict[str, tuple[tuple[str, ...], ...]] = {
    "open": (("EACCES",), ("EMFILE", "ENOMEM"), ("ENOSPC",), ("EIO", "EROFS"), ("ESTALE",)),
    "mkdir": (("EACCES",), ("ENOSPC", "EROFS")),
    "rename": (("EIO", "ENOSPC", "ESTALE"),),
    "symlink": (("EACCES", "ENOSPC"),),
    "fsync": (("EIO", "ENOSPC"),),
    "lock": (("ENOLCK", "EIO"),),
    "read": (("EIO", "ESTALE", "ETIMEDOUT"),),
    "write": (("ENOSPC",), ("EIO",)),
    "truncate": (("EIO", "ENOSPC"),),
    "stat": (("EACCES",), ("EIO", "ESTALE")),
    "opendir": (("EACCES",), ("EMFILE",)),
    "readdir": (("EIO", "ESTALE"),),
    "unlink": (("EIO", "EROFS"),),
    "utime": (("EROFS",),),
    "memfd": (("EMFILE",), ("ENOMEM", "ENOSYS")),
}

# What is asked for, and whether the cache holds it already.
SCENARIOS = {
    "load, cold": (("load",), False),
    "load, warm": (("load",), True),
    "family, cold": (("family",), False),
    "family, warm": (("family",), True),
    "variant, cold": (("variant",), False),
    "variant, warm": (("variant",), True),
    "import": (("take_in",), False),
    "export": (("give_out",), True),
    "prune": (("prune",), True),
    "verify": (("verify",), True),
}

COMPILER = """\
#!/bin/sh
case " $* " in *" --version "*) echo "g++ (copying) 1.0"; exit ;; esac
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2; shift ;; -MF) rule=$2; shift ;; esac
  shift
done
if [ -n "$rule" ]; then : > "$out"; echo "$out: " > "$rule"; exit; fi
module=${out%/*}; module=${module##*/}
module=${module%.*}  # its owner and a random number follow the module's name
cp "$PRODUCTS/${module%.*}.so" "$out"
"""

FILL = "#include <sgl_kernel/type.cuh>\n__global__ void fill(int* data) { *data = 7; }\n"


@dataclass
class Tally:
    """What came of the faults of one scenario."""

    tried: int = 0
    fired: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Ground:
    """A fork server, and directories for it to work in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self._server = self._started()
        self._prepare()

    def _started(self) -> subprocess.Popen[str]:
        library = self._directory / "preload.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "preload.c", "-ldl"], check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLJIT_")}
        environment |= {"LD_PRELOAD": str(library), "HOME": str(self._directory)}
        return subprocess.Popen(
            [sys.executable, HERE / "server.py"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _prepare(self) -> None:
        """Compile everything once with g++, then once more, as it will be, with the script that copies."""
        csrc = self._directory / "csrc"
        csrc.mkdir()
        (csrc / "number.cpp").write_text("int number() { return 1; }\n")
        (csrc / "fill.cuh").write_text(FILL)
        (self._directory / "count").write_text("0")
        time.sleep(2.1)  # so that scans of these files are remembered
        first = self._place(warm=False)
        self.ask(first, ("load", "family"), environment={"SGLJIT_CXX": "g++"})
        products = self._directory / "products"
        products.mkdir()
        for library in (first / "cache").glob("*/*/*/*/*/module.so"):
            shutil.copy(library, products / f"{library.parents[2].name}.so")
        compiler = self._directory / "g++"
        compiler.write_text(COMPILER.replace("$PRODUCTS", str(products)))
        compiler.chmod(0o755)
        warm = self._place(warm=False)
        self.ask(warm, ("load", "family", "variant"))
        artifacts = list((warm / "cache").glob("[!.]*/*/*/*/*/manifest.json"))
        (self._directory / "count").write_text(str(len(artifacts)))
        self.ask(warm, ("give_out",))
        shutil.move(warm / "tmp" / "out.zip", self._directory / "golden.zip")
        (self._directory / "warm").mkdir()
        shutil.move(warm / "cache", self._directory / "warm" / "cache")

    def _place(self, *, warm: bool) -> Path:
        self._made += 1
        place = self._directory / str(self._made)
        for name in ("tmp", "run"):
            (place / name).mkdir(parents=True, mode=0o700)
        for name in ("csrc", "count", "golden.zip"):
            (place / name).symlink_to(self._directory / name)
        if warm:
            shutil.copytree(self._directory / "warm" / "cache", place / "cache")
        return place

    def ask(
        self,
        place: Path,
        scenarios: tuple[str, ...],
        fault: tuple[str, int, int] = ("", 0, 0),
        environment: dict[str, str] | None = None,
        right: bool = True,
    ) -> dict[str, Any]:
        """Run scenarios in a process of their own."""
        kind, n, number = fault
        environment = {
            "SGLJIT_CACHE_DIR": str(place / "cache"),
            "SGLJIT_CXX": str(self._directory / "g++"),
            "XDG_RUNTIME_DIR": str(place / "run"),
            "TMPDIR": str(place / "tmp"),
            **(environment or {}),
        }
        request = {
            "scenarios": scenarios,
            "place": str(place),
            "environment": environment,
            "kind": kind,
            "n": n,
            "errno": number,
            "log": str(place / "log"),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        if right and not kind:
            assert answer["outcome"] == "right", answer["text"]
        return answer

    def fault(self, name: str, kind: str, n: int, symbol: str, tally: Tally) -> bool:
        """Try one fault. Whether it was met."""
        scenarios, warm = SCENARIOS[name]
        place = self._place(warm=warm)
        if name == "prune":
            self._break_one(place / "cache")
        answer = self.ask(place, scenarios, (kind, n, getattr(errno, symbol)))
        tally.tried += 1
        if answer["fired"]:
            tally.fired += 1
            before = () if name == "prune" else ("collect",)  # which removes what is damaged
            after = self.ask(place, (*before, *scenarios, "collect"), right=False)
            outcome = answer["outcome"] if after["outcome"] == "right" else "wrong"
            tally.outcomes[outcome] += 1
            if outcome == "wrong":
                text = answer["text"] if answer["outcome"] == "wrong" else f"afterwards: {after['text']}"
                tally.failures.append(f"{name}: call {n} of {kind} fails with {symbol}\n{text}")
        shutil.rmtree(place, ignore_errors=True)
        return bool(answer["fired"])

    def _break_one(self, cache: Path) -> None:
        """Damage a copy of an artifact, and leave what a killed build leaves."""
        (artifact,) = cache.glob("*/_/number/*/*")
        copy = artifact.parents[1].with_name("broken") / artifact.parent.name / artifact.name
        shutil.copytree(artifact, copy)
        os.truncate(copy / "module.so", 10)
        (cache / ".staging" / "number.0-1-1.0000abcd").mkdir(parents=True)
        os.utime(cache / ".staging" / "number.0-1-1.0000abcd", (0, 0))

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()


@contextlib.contextmanager
def ground(directory: Path) -> Iterator[Ground]:
    """A ground, for as long as the block runs."""
    made = Ground(directory)
    try:
        yield made
    finally:
        made.close()


def campaign(on: Ground, name: str, kinds: tuple[str, ...] = tuple(ERRNOS), step: int = 1) -> Tally:
    """The faults of some kinds in one scenario, at every call or at one of ``step``; each class of errnos begins at
    another call."""
    tally = Tally()
    for kind in kinds:
        for number, alike in enumerate(ERRNOS[kind]):
            n = number % step
            while on.fault(name, kind, n, alike[n % len(alike)], tally):
                n += step
    return tally
