# ruff: noqa: E501 - sentences in one piece; random numbers that can be repeated
"""Prompts made from templates: code, chat, reasoning, several languages; thousands, by seed.

Models differ in what they say, not in what they are asked, so plain questions over many subjects do
to make a model talk. Knows lists of words; no models and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from divine.tune import subjects
from divine.tune.conversations import Conversation

CLASSES = ("code", "chat", "reasoning", "multilingual")
_TRIES = 200  # repeats in a row after which a class has no more to give


def generated(seed: int, classes: tuple[str, ...] = CLASSES) -> Iterator[Conversation]:
    """Different prompts, the classes in turn, until none has more; a function of seed and classes.

    Each class is a sequence of its own, so leaving one out does not change the others.
    """
    queues = [_different(Random(f"{seed} {name}"), _MAKERS[name], name) for name in classes]
    while queues:
        for queue in list(queues):
            prompt = next(queue, None)
            if prompt is None:
                queues.remove(queue)
            else:
                yield prompt


def _different(random: Random, make: Callable[[Random], str], name: str) -> Iterator[Conversation]:
    seen: set[str] = set()
    tries = 0
    while tries < _TRIES:
        text = make(random)
        if text in seen:
            tries += 1
            continue
        tries = 0
        seen.add(text)
        yield Conversation(({"role": "user", "content": text},), name)


def _code(random: Random) -> str:
    kind = random.random()
    name, arguments, does = random.choice(subjects.FUNCTIONS)
    if kind < 0.3:
        start = f"def {name}({arguments}):\n"
        doc = f'    """{does[0].upper()}{does[1:]}."""\n'
        ask = random.choice((
            "Complete this Python function.",
            "Implement this function in Python.",
            "Finish the following function and answer with the whole function in a code block.",
            "Write the body of this function, then explain it in two sentences.",
            "Complete this function and add three unit tests for it.",
        ))  # fmt: skip
        return f"{ask}\n\n```python\n{start}{doc}```"
    if kind < 0.65:
        language = random.choice(subjects.LANGUAGES)
        ask = random.choice((
            "Write a {l} function that {d}.",
            "How do I write a function in {l} that {d}?",
            "I need {l} code that {d}. Include an example of its use.",
            "Write a {l} function that {d}, with comments and error handling.",
            "Show me an efficient {l} function that {d} and tell me its complexity.",
            "Write a {l} function `{n}` that {d}. Only the code, please.",
            "Explain step by step how to write a {l} function that {d}.",
        ))  # fmt: skip
        return ask.format(l=language, d=does, n=name)
    if kind < 0.85:
        language, program = random.choice(subjects.LANGUAGES), random.choice(subjects.PROGRAMS)
        ask = random.choice((
            "Write {p} in {l}.",
            "Create {p} using {l}. Keep it simple.",
            "Show me how to build {p} in {l}, with explanations.",
            "Write {p} in {l} with type hints or types where possible, and tests.",
        ))  # fmt: skip
        return ask.format(p=program, l=language)
    if kind < 0.93:
        a, b = random.choice(subjects.TABLES)
        query = random.choice(subjects.QUERIES).format(a=a, b=b)
        start = random.choice(("Write an SQL query that", "Give me SQL for PostgreSQL that"))
        return f"{start} {query}, for tables {a} and {b}. Choose sensible columns."
    ask = random.choice((
        "Explain what this Python function might do, and implement it: `{n}({a})`.",
        "Write a docstring, type hints and tests for a Python function `{n}` that {d}.",
        "Write a Python class whose method `{n}` {d}.",
        "Translate this idea into both Python and JavaScript: a function that {d}.",
    ))  # fmt: skip
    return ask.format(n=name, a=arguments, d=does)


def _chat(random: Random) -> str:
    kind = random.random()
    if kind < 0.65:
        return random.choice(subjects.ASKS).format(t=random.choice(subjects.TOPICS))
    if kind < 0.75:
        return random.choice(subjects.FORMS).format(s=random.choice(subjects.SITUATIONS))
    if kind < 0.82:
        return random.choice(subjects.TALES).format(c=random.choice(subjects.CHARACTERS))
    if kind < 0.88:
        days, place = random.randint(2, 7), random.choice(subjects.PLACES)
        return f"Plan a trip of {days} days to {place} for {random.choice(_TRAVELLERS)}."
    if kind < 0.93:
        dish, people = random.choice(subjects.DISHES), random.randint(1, 8)
        return f"Give me a recipe for {dish} for {people} people."
    first, second = random.sample(subjects.TOPICS, 2)
    ask = random.choice((
        "What do {a} and {b} have in common?",
        "Which is more interesting to study, {a} or {b}? Give reasons.",
        "Write one paragraph about {a} and one about {b}.",
    ))  # fmt: skip
    return ask.format(a=first, b=second)


_TRAVELLERS = ("a family with two children", "a couple", "a student on a budget", "a food lover",
               "someone who likes museums", "a group of friends")  # fmt: skip


def _reasoning(random: Random) -> str:
    a, b = random.sample(subjects.NAMES, 2)
    thing = random.choice(subjects.THINGS)
    n, m, k = random.randint(12, 90), random.randint(2, 11), random.randint(2, 9)
    price = random.randint(2, 40)
    return random.choice((
        f"{a} has {n} {thing} and gives {m} to {b}. Then {a} buys {k} times as many as are left. "
        f"How many {thing} does {a} have now? Think step by step.",
        f"A shop sells {thing} at {price} dollars each. {a} buys {m} and pays with a {price * m + k * 5}"
        " dollar note and coins. How much change is there? Show your work.",
        f"A train travels {n * 3} km in {m} hours. How far does it travel in {k} hours at that speed?",
        f"{a} is {m} years older than {b}. In {k} years the sum of their ages will be {n + 2 * k}. "
        "How old are they now?",
        f"What is {n} percent of {price * 10 + k}? Explain the steps.",
        f"Calculate {n} * {m} + {price} * {k} and explain each step.",
        f"{a} reads {m} pages a day of a book of {n * m} pages, and {k} more on weekends. "
        "How many days does the book take?",
        f"A rectangle is {n} cm long and {m} cm wide. What are its area and its perimeter?",
        f"All {thing} of {a} are either red or blue. {n} are red, and there are {k} times as many "
        "blue ones. How many are there in all?",
        f"If {a} can paint a fence in {m} hours and {b} in {m + k}, how long do they need together?",
        f"The numbers {m}, {m + k}, {m + 2 * k}, {m + 3 * k} follow a rule. What are the next three?",
        f"{a} runs faster than {b}. {b} runs faster than {random.choice(subjects.NAMES)} the younger. "
        "Who is the slowest? Explain your reasoning.",
        f"Solve for x: {m}x + {price} = {n * m + price}. Show each step.",
        f"A bag holds {m} white and {k} black {thing}. What is the probability of drawing a white "
        "one, and then another white one?",
        f"Convert {n * 7} minutes into hours and minutes, and say what time it is that long after "
        f"{k}:{n % 60:02} in the morning.",
        f"{a} saves {price} dollars a week. After how many weeks can {a} buy a bicycle for "
        f"{price * n // 3 + k} dollars?",
    ))  # fmt: skip


def _multilingual(random: Random) -> str:
    if random.random() < 0.15:
        language = random.choice(("French", "German", "Spanish", "Italian", "Portuguese"))
        topic = random.choice(subjects.TOPICS)
        return random.choice((
            f"Write three sentences about {topic} in {language} and translate each into English.",
            f"How do I say '{random.choice(subjects.SITUATIONS)}' in {language}?",
            f"Teach me five {language} words about {topic}.",
        ))  # fmt: skip
    asks, topics = random.choice(subjects.TONGUES)
    return random.choice(asks).format(t=random.choice(topics))


_MAKERS: dict[str, Callable[[Random], str]] = {
    "code": _code,
    "chat": _chat,
    "reasoning": _reasoning,
    "multilingual": _multilingual,
}
