"""tests.widgets.blocks"""
