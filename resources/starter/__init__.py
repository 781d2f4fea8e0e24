"""The starter models, the text they learn from, and the programs that train them."""
