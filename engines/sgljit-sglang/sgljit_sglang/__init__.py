"""Parts of SGLang on sgljit's kernels: norms, activations, rotations, routing, quantisation, hierarchical cache.

SGLang finds ``register`` by its entry point.
"""

from sgljit_core.errors import ConfigError
from sgljit_engines import Adapter
from sgljit_engines.errors import UnsupportedEngineError

from ._version import __version__

__all__ = ["ADAPTER", "__version__", "register"]

ADAPTER = Adapter(
    distribution="sgljit-sglang",
    engine={"sglang": ">=0.5.23,<0.5.24"},
    ops={
        "norm": {
            "rmsnorm": "RMSNorm",
            "fused_add_rmsnorm": "RMSNorm with a residual",
            "gemma_rmsnorm": "Gemma's RMSNorm",
            "gemma_fused_add_rmsnorm": "Gemma's RMSNorm with a residual",
            "fused_inplace_qknorm": "the norm of q and k",
        },
        "activation": {
            "silu_and_mul": "silu_and_mul",
            "gelu_and_mul": "gelu_and_mul",
            "gelu_tanh_and_mul": "gelu_tanh_and_mul",
            "silu_and_mul_quant": "silu_and_mul with the quantisation of groups to FP8",
            "silu_and_mul_masked_quant": "silu_and_mul with the quantisation to FP8 of experts' rows",
        },
        "rope": {
            "apply_rope_inplace": "the rotation of q and k",
            "apply_rope_inplace_with_kvcache": "the rotation of q and k with the store of k and v",
        },
        "moe": {
            "topk_softmax": "the routing by softmax",
            "topk_sigmoid": "the routing by sigmoid",
            "topk_sqrtsoftplus": "the routing by sqrtsoftplus",
        },
        "quant": {
            "per_token_group_quant_fp8": "the quantisation of groups to FP8",
            "masked_group_quant_fp8": "the quantisation to FP8 of experts' rows",
        },
        "kvcache": {
            "store_cache": "the store of k and v",
            "set_mla_kv_buffer": "the store of MLA's k",
        },
        "hicache": {
            "transfer_hicache_one_layer": "the load of a HiCache layer",
            "transfer_hicache_one_layer_mla": "the load of a HiCache layer of MLA",
            "transfer_hicache_all_layer": "the backup of HiCache",
            "transfer_hicache_all_layer_mla": "the backup of HiCache of MLA",
        },
    },
    exact_ops=frozenset(
        {
            "silu_and_mul",
            "store_cache",
            "set_mla_kv_buffer",
            "transfer_hicache_one_layer",
            "transfer_hicache_one_layer_mla",
            "transfer_hicache_all_layer",
            "transfer_hicache_all_layer_mla",
        }
    ),
    by_name=frozenset(  # the last is as fast as SGLang's, and nobody measured the others
        {"silu_and_mul_quant", "silu_and_mul_masked_quant", "masked_group_quant_fp8", "set_mla_kv_buffer"}
    ),
    is_early=True,
)


def register() -> None:
    """Put sgljit's ops into SGLang's seams for plugins, as far as ``SGLJIT_ENGINES`` says so.

    Without effect where it ran already, and where SGLang is not installed or of a version that was not tested. A family
    is imported when SGLang first calls one of its ops.
    SGLang applies the hooks after all plugins have run.

    Raises:
        SystemExit: ``SGLJIT_ENGINES`` or ``SGLJIT_SHADOW`` cannot be read; or SGLang is not one that was tested, with
            ``strict``. SGLang logs an ``Exception`` of a plugin, and serves without the adapter.
    """
    try:
        _put()
    except (ConfigError, UnsupportedEngineError) as error:
        raise SystemExit(f"{ADAPTER.distribution}: {error}") from error


def _put() -> None:
    if not (used := ADAPTER.start()):
        return
    ADAPTER.leave(op for op in ADAPTER.parts if op not in used)
    from . import activations, caches, experts, hicache, norms, qknorm, quantization, rotations

    for part in (norms, qknorm, activations, rotations, experts, quantization, caches, hicache):
        part.replace(used)
