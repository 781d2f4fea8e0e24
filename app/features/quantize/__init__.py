"""Quantize page: quantize models, evaluate their quality, compare reports.

source, texts, plan, evaluation       what can be quantized and measured. No Qt
fields, recipe_*, evaluate_form, start_panel      the forms on the left
work, run                             jobs: stages, time left
figures, layers, report_view, results       the right side
reports, page, place                  stored reports; the page
"""
