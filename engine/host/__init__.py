"""The loaded model with its KV cache: built, described, replaced.

resolve, loading           resolves a configuration; builds model, runner and cache
assembly                   the model with its cache, runner and speculation
kv_cache, offload_runner   caches that fit in memory; steps with CPU offload
description                the model's description in snapshots
token_budget               max_num_batched_tokens by measurement
model_host                 replaces model or cache while requests wait
"""
