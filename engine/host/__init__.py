"""The loaded model with its KV cache: built, described, replaced.

resolve, assembly          a configuration, and the model, runner and cache that it gets
kv_cache, offload_runner   caches that fit in memory; steps with CPU offload
description                what snapshots say of the model
model_host                 replaces model or cache while requests wait
"""
