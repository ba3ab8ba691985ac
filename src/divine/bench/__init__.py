"""What a model costs on this machine, beside what the machine can do, and what drafting saves.

run() loads a model (or random weights of real shapes), and measures decoding, passes of 1 to 32
rows, prefill and long context beside the machine's read bandwidth and the kernels' in-cache rates,
all in one run. speculate() answers prompts plainly and with each drafter in turn. bench_serving()
loads a server with several requests at once. They print nothing: figures go to the caller as one
mapping; plot() draws those of the second.
"""

from divine.bench.plot import check_plot, plot
from divine.bench.run import run
from divine.bench.serving import ServingSettings, bench_serving, started
from divine.bench.speculation import Settings, speculate

__all__ = [
    "ServingSettings",
    "Settings",
    "bench_serving",
    "check_plot",
    "plot",
    "run",
    "speculate",
    "started",
]
