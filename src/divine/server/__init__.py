"""The HTTP server: OpenAI's and Anthropic's APIs, metrics and a page, over one loaded model.

Only this package knows a web framework (extra "server"). It turns requests into streams of the
model and what comes back into JSON; tokens, passes and drafts are the business of those below.
"""

from divine.server.run import serve
from divine.server.settings import Settings

__all__ = ["Settings", "serve"]
