"""The HTTP server: OpenAI's and Anthropic's APIs, metrics and a page, over one loaded model.

serve() is in run.py, Settings in settings.py, which needs no web framework and is quick to import.
Only this package knows one (extra "server"). It turns requests into streams of the
model and what comes back into JSON; tokens, passes and drafts are the business of those below.
"""
