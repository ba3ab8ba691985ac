"""The native executor: CPU kernels chosen at run time, one native call for each pass."""
