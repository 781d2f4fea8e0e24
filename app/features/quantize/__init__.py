"""Quantize page: quantize models, evaluate their quality, compare reports.

source, texts, plan, evaluation                    what can be quantized and measured. No Qt
fields, recipe_fields, recipe_form, evaluate_form, start_panel    the forms on the left
work, run, leave                                   jobs: thread, stages, time left, closing
figures, layers, examples, report_view, comparison_view, results  the right side
kept_reports, reports, page, place                 stored reports; the page and its connections
"""
