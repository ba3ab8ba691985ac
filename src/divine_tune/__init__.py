"""The founding paper's name for training: `python -m divine_tune` is `divine tune`."""
