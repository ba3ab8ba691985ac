"""Makes the helpers beside it (tiny_models) importable from every test folder.

Tests read real models from the user's own folder and keep everything else out of the user's way.
"""

from __future__ import annotations

import os
import signal
import tempfile

from divine.machine import cache_folder

os.environ.setdefault("DIVINE_MODELS", str(cache_folder() / "models"))
os.environ["DIVINE_CACHE"] = tempfile.mkdtemp(prefix="divine-tests-")

# Started in the background, a process ignores interrupts, and so would all that it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
