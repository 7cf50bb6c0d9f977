"""Scores from tables that clients count and somebody adds are those of scikit-learn and of all samples together."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from shoal.methods.clustering.agreement import counts
from shoal.methods.scores.clustering import accuracy, chance_ari, cluster_balance, crossed, label_table, table_purity
from shoal.methods.scores.evaluation import table_metrics

CLUSTERS, CLASSES, CLIENTS = 5, 4, 3
samples = st.lists(
    st.tuples(st.integers(0, CLUSTERS - 1), st.integers(-1, CLASSES - 1), st.integers(0, CLIENTS - 1)), min_size=1
)


def added(cluster, label, client):
    """The sum of the clients' tables; one client more than there are has no sample."""
    parts = [client == number for number in range(CLIENTS + 1)]
    return sum(label_table(cluster[here], label[here], CLUSTERS, CLASSES) for here in parts)


@given(samples)
@example([(2, 1, 0)])
@example([(2, 1, 0), (2, 0, 0), (2, 1, 2)])
@example([(0, -1, 0), (1, -1, 1)])
@example([(0, 0, 0), (1, 1, 0), (2, 2, 1)])
@settings(deadline=None)
def test_added_tables_score_as_all_samples_do(drawn):
    cluster, label, client = np.array(drawn).T
    sizes = np.bincount(cluster, minlength=CLUSTERS)
    expected = {"clusters_used": np.count_nonzero(sizes), "balance": cluster_balance(sizes)}
    truth = label[label >= 0]
    of_truth = cluster[label >= 0]
    if len(truth):
        expected |= {"acc": accuracy(truth, of_truth), "purity": table_purity(crossed(truth, of_truth))}
        expected |= {"nmi": normalized_mutual_info_score(truth, of_truth), "ari": adjusted_rand_score(truth, of_truth)}
    assert table_metrics(added(cluster, label, client)) == pytest.approx(expected, abs=1e-12)


def test_empty_rows_and_columns_change_no_draw_of_chance():
    rng = np.random.default_rng(0)
    cluster, label = rng.choice([0, 2, 4], 36), rng.choice([0, 3], 36)
    tables = (added(cluster, label, rng.integers(0, CLIENTS, 36))[:, :-1], crossed(label, cluster))
    first, second = (chance_ari(table, 1, np.random.default_rng(1)) for table in tables)
    assert first == second


def test_a_sample_outside_the_table_is_refused():
    with pytest.raises(ValueError, match="invalid entry"):
        counts(np.array([0, 1]), np.array([0, 2]), 2, 2)
