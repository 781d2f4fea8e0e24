"""The starter pair of models, the text they learn from, and the program that trains them."""
