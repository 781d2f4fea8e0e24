"""Speculative decoding: something cheap drafts tokens, the model verifies them in one pass.

    draft_model.py, ngram.py   proposers: what may come next (one small interface, proposer.py)
    verify.py                  which drafts stand; exact for greedy, seeded and sampled requests
    acceptance.py              how often a request's drafts stand
    lengths.py                 what a token costs, and how many to draft for whom
    speedup.py                 plain steps now and then, against which the gain is measured
    speculator.py              all of it, around the engine's step

Leviathan et al. 2023 and Chen et al. 2023 (sampling), Saxena 2023 (prompt lookup).
"""
