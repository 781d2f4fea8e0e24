"""Models page and model session: find, estimate, download, open and delete models.

estimate, fit, precision, placement, torch_build      what a model needs and what fits. No Qt
hub, hub_errors, hub_download                         the Hugging Face Hub. No Qt
downloads, library, source_list                       the left side: queue, local models, search
model_card, fit_rows, detail, inspector, deletion     the right side: one model
page, welcome, session                                pages, the open model
"""
