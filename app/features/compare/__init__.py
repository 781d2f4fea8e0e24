"""The same prompts on two models or settings, side by side; and one prompt as many requests.

Read `replies` (the record of a reply), `requests` (sends prompts, collects replies), `reply_view`
(shows one). A comparison: `record`, `placement`, `engines`, `sending`, `runner`, `export`, `sides`,
`columns`, `view`. A broadcast: `broadcast_view`. `stored`: both as records of the Runs page.
"""
