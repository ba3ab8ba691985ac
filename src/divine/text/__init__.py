"""Text and tokens: tokenizers from GGUF metadata, incremental decoding, chat templates."""
