"""Runs page: every quantization, evaluation, comparison and broadcast in one table.

records, difference, verdicts         runs as figures, side by side, and in a sentence. No Qt
book, table                           stored and running runs, and their table
difference_view, stored_view, ladder_figures, detail  the selected runs
jobs, job_forms, live_precision       quantizations, evaluations; precision of the open model
forms, page, place                    arrange everything, and connect it to the window
"""
