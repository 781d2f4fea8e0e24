"""The Hugging Face hub and its cache on this machine: search, download, delete. Imports no Qt.

huggingface_hub does what it does: the API, the token, the layout and the scan of the cache. Our
own is the transfer (it pauses, resumes, counts and checks) and moving aside what is deleted.
"""
