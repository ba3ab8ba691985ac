"""The reference backend: NumPy, slow and obvious; what it computes is what the others must."""
