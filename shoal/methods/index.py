"""The methods by the question that each answers, with names for people: `shoal run --methods`, and the site's index."""

from __future__ import annotations

from shoal.methods.contract.base import Method
from shoal.methods.contract.questions import Question
from shoal.methods.registry import METHODS


def methods_by_question() -> dict[Question, list[type[Method]]]:
    """Return the methods below the question that they answer, the first to try at the top."""
    return {question: [kind for kind in METHODS.values() if kind.question is question] for question in Question}


def title_of_method(key: str) -> str:
    """Return what people call a method; the key of one that is not known.

    >>> title_of_method("fedkmeans"), title_of_method("mine")
    ('federated K-means', 'mine')
    """
    return METHODS[key].title if key in METHODS else key
