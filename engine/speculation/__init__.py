"""Speculative decoding: draft tokens cheaply, verify them in one step of the model.

Reads in this order: `speculator` (around the engine's step), `proposer` (the interface), `ngram`,
`draft_model` and `eagle3/` (the methods), `draft_loading` (their weights),
`verify` (exact for greedy, seeded and sampled requests), `statistics` (acceptance and speed-up),
`lengths` (draft length by acceptance and cost).

Leviathan et al. 2023 and Chen et al. 2023 (sampling), Saxena 2023 (prompt lookup), Li et al. 2025
(EAGLE-3).
"""
