"""Sentences on how far to trust a search's result, for the page, MLflow's note and the command line."""

from __future__ import annotations

from shoal.sweeps.search.definition import SILHOUETTE, SearchDefinition, Value
from shoal.sweeps.search.result import SearchResult


def value_in_words(value: Value) -> str:
    """Return a setting's value as people read it, with four digits.

    >>> value_in_words(0.000123456), value_in_words(None), value_in_words(True), value_in_words(64)
    ('0.0001235', 'none', 'true', '64')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def caveats(definition: SearchDefinition, result: SearchResult) -> list[str]:
    """Return what a reader must know before trusting the result, a paragraph each."""
    sentences = []
    if definition.uses_labels:
        sentences.append(f"The score {result.score} uses labels: without labels this search cannot be made.")
    if result.score == SILHOUETTE:
        sentences.append(
            "Silhouette is computed in each model's own features, which the settings change: a network that maps all "
            "samples to a few points has a high one. Look at the clusters of the best run before you use its settings."
        )
    sentences.append(noise_sentence(result))
    return sentences


def noise_sentence(result: SearchResult) -> str:
    """Return how far scores differ by the seed alone, and which trials are as good as the best."""
    noise = result.noise
    if noise is None:
        return (
            "Each trial is one run, so it is not known how far scores differ by the seed alone; a search with seeds: 3 "
            "measures it. A small difference between two trials says nothing."
        )
    level = "no other trial is so close"
    if equals := result.level_with_best():
        level = f"as good as the best by that measure are trials {', '.join(str(trial.number) for trial in equals)}"
    return (
        f"Two trials whose scores are closer than {noise:.2g}, twice the standard error of a difference from seed to "
        f"seed, cannot be told apart; {level}."
    )
