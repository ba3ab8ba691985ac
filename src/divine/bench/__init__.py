"""What a model costs on this machine, beside what the machine can do, and what drafting saves.

run() loads a model (or random weights of real shapes), and measures decoding, passes of 1 to 32
rows, prefill and long context beside the machine's read bandwidth and the kernels' in-cache rates,
all in one run. speculate() answers prompts plainly and with each drafter in turn. bench_serving()
loads a server with several requests at once. They print nothing: figures go to the caller as one
mapping; plot() draws those of the second. evaluate_drafts() counts the tokens that drafts of set
sizes bring, whatever the time.
"""

from divine.bench.acceptance import AcceptanceSettings, evaluate_drafts, plot_acceptance
from divine.bench.plot import check_plot, plot
from divine.bench.run import run
from divine.bench.serving import ServingSettings, bench_serving, started
from divine.bench.speculation import Settings, speculate

__all__ = [
    "AcceptanceSettings",
    "ServingSettings",
    "Settings",
    "bench_serving",
    "check_plot",
    "evaluate_drafts",
    "plot",
    "plot_acceptance",
    "run",
    "speculate",
    "started",
]
