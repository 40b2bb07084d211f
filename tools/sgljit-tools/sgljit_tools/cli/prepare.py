"""``sgljit prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import freeze, parallel_compile, why
from sgljit_core.paths import cache_root
from sgljit_core.plugins import discovery

from .ahead import Arch, builds_ahead, cuda_target, fail_if_not_kept, target_of
from .main import added


def prepare(
    model: Annotated[Path, typer.Option(help="A model's config.json, or the directory that holds it.")],
    tensor_parallel: Annotated[int, typer.Option(help="The number of ranks that share the attention heads.")] = 1,
    cuda_arch: Arch = None,
    engine: Annotated[str | None, typer.Option(help="The engine; by default all that have an adapter here.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Such as bfloat16; by default the config's.")] = None,
    push: Annotated[str, typer.Option(metavar="NAME", help="Then publish it on SGLJIT_REMOTE as this archive.")] = "",
    only_list: Annotated[bool, typer.Option("--list", help="List what would be built, and build nothing.")] = False,
) -> None:
    """Build all that a model asks for before an engine serves it, and nothing else: for 1 to 16384 tokens at a time.

    It builds for this machine's device or, with --cuda-arch, for another, which need not be here; without either, for
    the CPU. It compiles even with SGLJIT_JIT=error, which forbids compiling on demand.
    """
    from sgljit_engines.adapter import engine_ops
    from sgljit_engines.shapes import read_config

    freeze("on")
    publish = added("cache.push", "--push") if push else None
    shape = read_config(model, tensor_parallel, dtype)
    ops = engine_ops(engine)
    for note in shape.notes:
        typer.echo(f"note: {note}", err=True)
    with target_of(cuda_arch):
        # A list must leave the cache as it is.
        builders = builds_ahead(discovery.installed(), model=shape, ops=ops, keep=not only_list)
        if only_list:
            for builder in builders:
                typer.echo(str(why(builder)))
            return
        parallel_compile(builders)
        device = cuda_target() or "cpu"
    typer.echo(f"{len(builders)} modules are ready for {shape.model_type} in {shape.dtype} on {device}")
    fail_if_not_kept()
    if publish:
        own = [at for builder in builders if (at := why(builder).artifact) and at.is_relative_to(cache_root())]
        typer.echo(f"publishing {len(own)} of them, those that are in the cache {cache_root()}")
        publish(name=push, artifact=own)
