"""From a model folder to a model in memory. Above attention and formats, below speculation.

checkpoint, architecture             the folder, its transformers class and what is supported
smoke_test, smoke_config, smoke_run    whether the engine computes what transformers computes
placement, layers                    devices; faster modules
weight_map, weight_checks, disk_weights, dummy    where values come from
materialise, prepare, targets, loader    memory, replacements, quantized layers, and the one path
"""
