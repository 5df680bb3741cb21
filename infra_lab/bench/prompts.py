"""What benchmarks ask that depend on the text: questions, and texts to be summarized."""

from __future__ import annotations

from infra_lab.bench.perplexity import read_text

WORDS_PER_EXCERPT = 90
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Give me three tips for a job interview.",
    "What is photosynthesis?",
    "Explain gravity to a child.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "What is a hash table?",
)
WORKS = ("summary", "chat")


def work(name: str) -> list[str]:
    """Eight user messages. "summary": each with an excerpt that the answer repeats in part;
    "chat": questions that have nothing to repeat."""
    if name == "chat":
        return list(QUESTIONS)
    words = read_text(None).split()
    step = (len(words) - WORDS_PER_EXCERPT) // (len(QUESTIONS) - 1)
    excerpts = (
        " ".join(words[start : start + WORDS_PER_EXCERPT])
        for start in range(0, step * len(QUESTIONS), step)
    )
    return [f"Summarize this text:\n\n{excerpt}" for excerpt in excerpts]
