"""Training what drafts: a model's own answers, heads and tables made from them.

Capturing answers and building tables need no torch; only network, losses, optimizer, trainer and
huggingface import it, and nothing here does so when it is imported.
"""
