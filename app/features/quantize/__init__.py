"""Quantization of models and evaluation of their quality, for the Runs page.

source, texts, plan, evaluation       what can be quantized and measured. No Qt
fields, recipe_*, evaluate_form, start_panel      the forms
work, run                             jobs: stages, time left
figures, layers, results              progress, and the model that was made
reports                               titles and origin of stored reports
"""
