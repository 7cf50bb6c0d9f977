"""The questions that methods answer: the headings of `shoal run --methods`, and of the site's index."""

from __future__ import annotations

from enum import StrEnum


class Question(StrEnum):
    """What a user wants to know; every method answers one question."""

    VECTORS = "Which clusters are in my vectors, tables, windows, or in images seen through a frozen encoder?"
    IMAGES = "Which clusters are in my images, with a network that the clients train together?"
    GENERATORS = "Which generative models explain my data, one for each cluster?"
    FEATURES = "Which features describe my unlabelled samples?"
    CLIENTS = "I have labels. Which clients belong together, and what does each gain?"
    REFERENCES = "What must a federation beat?"
