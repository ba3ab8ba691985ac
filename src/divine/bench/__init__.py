"""What a model costs on this machine, as shares of what the machine can do.

run() loads a model (or random weights of real shapes), and measures decoding, passes of 1 to 32
rows, prefill and long context beside the machine's read bandwidth and the kernels' in-cache rates,
all in one run. It knows no prompts and prints nothing: figures go to the caller as one mapping.
"""

from divine.bench.run import run

__all__ = ["run"]
