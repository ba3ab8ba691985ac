"""Divine: exact language models on ordinary computers."""

__version__ = "0.1.0"
