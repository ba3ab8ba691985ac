"""Divine from Python: load a model, generate text.

    model = divine.load("model.gguf")
    print(model.generate("Why is the sky blue?").text)
    for chunk in model.stream("Tell me more."):
        print(chunk.text, end="", flush=True)

Puts the parts together: file, program, backend, tokenizer, chat template, drafters, engine. Names
of models are resolved by the command line; here a model is the path of a GGUF file. A Model may be
used from several threads; what they generate runs in shared passes. All errors meant for users are
DivineErrors.
"""

from divine.api.answers import Chunk, Completion, Span, Stream
from divine.api.loading import load
from divine.api.model import Model
from divine.api.options import Message, Options, Prompt
from divine.drafting import DraftCounts
from divine.engine import Statistics
from divine.sampling import TokenLogprob

__all__ = [
    "Chunk",
    "Completion",
    "DraftCounts",
    "Message",
    "Model",
    "Options",
    "Prompt",
    "Span",
    "Statistics",
    "Stream",
    "TokenLogprob",
    "load",
]
