"""SGLang's norms, activations and hierarchical cache on sgljit's kernels.

SGLang finds ``register`` by its entry point.
"""

from sgljit_engines import Adapter

from ._version import __version__

__all__ = ["ADAPTER", "__version__", "register"]

ADAPTER = Adapter(
    distribution="sgljit-sglang",
    engine={"sglang": ">=0.5.23,<0.5.24"},
    ops={
        "norm": {
            "rmsnorm": "RMSNorm",
            "fused_add_rmsnorm": "RMSNorm with a residual",
            "gemma_rmsnorm": "GemmaRMSNorm",
            "gemma_fused_add_rmsnorm": "GemmaRMSNorm with a residual",
            "fused_inplace_qknorm": "the norm of q and k",
        },
        "activation": {
            "silu_and_mul": "SiluAndMul",
            "gelu_and_mul": "GeluAndMul",
            "gelu_tanh_and_mul": "GeluAndMul by tanh",
        },
        "hicache": {
            "transfer_hicache_one_layer": "the load of a HiCache layer",
            "transfer_hicache_one_layer_mla": "the load of a HiCache layer of MLA",
            "transfer_hicache_all_layer": "the backup of HiCache",
            "transfer_hicache_all_layer_mla": "the backup of HiCache of MLA",
        },
    },
)


def register() -> None:
    """Put sgljit's ops into SGLang's seams for plugins, as far as ``SGLJIT_ENGINES`` says so.

    Without effect where it ran already, and where SGLang is not installed or of a version that was not tested.
    SGLang applies the hooks after all plugins have run, and logs an error of a plugin without raising it.

    Raises:
        sgljit_core.errors.ConfigError: ``SGLJIT_ENGINES`` cannot be read.
        sgljit_engines.errors.UnsupportedEngineError: ``SGLJIT_ENGINES=strict``, and SGLang is not one that was tested.
    """
    if used := ADAPTER.start():
        from . import activations, hooks, norms

        norms.replace(used)
        activations.replace(used)
        hooks.replace(used)
