"""What was said to the user in this run: errors and finished work, to be read again."""
