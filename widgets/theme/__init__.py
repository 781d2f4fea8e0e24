"""widgets.theme"""
