"""Compile one kernel with Triton: ``python worker.py JOB``. The only module that needs Triton's compiler.

The job is a JSON file beside which the results are written: ``image``, the machine code, and ``facts.json``. An
exception of Triton ends the process, with its text as the last line. The names of Triton that are used are public:
``triton.compile``, ``ASTSource`` and ``GPUTarget``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

_ALIGNED = ":16"


def main(job: Path) -> None:
    """Compile what a job asks for."""
    wanted: dict[str, Any] = json.loads(job.read_text(encoding="utf-8"))
    sys.path[:0] = [*wanted["paths"], str(job.parent)]
    import triton
    from sources import Finder  # a copy beside the job: the project itself is not on the path
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(Finder(wanted["family"], Path(wanted["csrc"])).module(wanted["file"]), wanted["kernel"])
    if not isinstance(function, triton.JITFunction):  # autotuned: its configuration is among the constants and options
        function = function.fn
    signature, constants, attributes = {}, {}, {}
    for i, (name, text, is_constexpr) in enumerate(wanted["arguments"]):
        if is_constexpr or text.startswith("="):
            signature[name] = "constexpr"
            constants[name] = ast.literal_eval(text.removeprefix("="))
        else:
            signature[name] = text.removesuffix(_ALIGNED)
            if text.endswith(_ALIGNED):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", wanted["capability"], 32), options=wanted["options"])
    found = made.metadata
    entry = re.search(rf"\.entry\s+{re.escape(found.name)}\s*\((.*?)\)", made.asm["ptx"], re.DOTALL)
    if entry is None:
        raise RuntimeError(f"no entry point {found.name} in the PTX")
    facts = {
        "symbol": found.name,
        "warps": found.num_warps,
        "shared": found.shared,
        "pdl": bool(getattr(found, "launch_pdl", False)),
        "parameters": re.findall(r"\.param\s+\.(\w+)", entry[1]),
        # The needs of a launch that ours does not meet, by the names of Triton's metadata.
        "needs": {
            name: value
            for name, usual in (("num_ctas", 1), ("global_scratch_size", 0), ("profile_scratch_size", 0))
            if (value := getattr(found, name, usual)) not in (usual, None)
        },
        "triton": triton.__version__,
    }
    (job.parent / "image").write_bytes(made.asm["cubin"])
    (job.parent / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).absolute())
    except Exception as error:  # noqa: BLE001 - what it says is the answer
        import traceback

        traceback.print_exc()
        text = " ".join(str(error).split()) or "no text"
        print(f"\nerror: {type(error).__name__}: {text}", file=sys.stderr)
        sys.exit(1)
