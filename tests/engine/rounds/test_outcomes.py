"""What becomes of each client of a round, by hand: who is trained now, who is left out, and why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.core.errors import FailureCause
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.outcomes import ClientState, RoundFailed, RoundOutcomes
from shoal.engine.store.finished_work import FinishedWork

ILL = Failed("it was ill")
LOST = Failed("its worker was lost")
REFUSED = Failed("NaN", FailureCause.MESSAGE_REFUSED)
DAMAGED = Failed("its file is damaged", FailureCause.FILE)


def work(client: int) -> FinishedWork:
    return FinishedWork(client, 10, 1, 1, 0, {}, {}, {"update": "u"}, {"u": "0"}, 0.1)


def asked(groups: Sequence[list[int]], retries: int = 1, stored: Sequence[int] = ()) -> RoundOutcomes:
    """Clients in groups, given to training, where the work of some is stored already."""
    outcomes = RoundOutcomes(retries)
    outcomes.ask([client for group in groups for client in group])
    outcomes.groups += groups
    outcomes.give_to_training(list(groups), lambda client: work(client) if client in stored else None)
    return outcomes


def one_pass(outcomes: RoundOutcomes, results: dict[int, Failed | None]) -> None:
    """Train once: None is work that is done."""
    outcomes.begin_pass()
    for client, failure in results.items():
        if failure is None:
            outcomes.finished(client, work(client))
        else:
            outcomes.failed(client, failure)
    for client, lost in outcomes.end_pass().items():
        outcomes.failed(client, lost)


def test_a_client_that_fails_is_tried_as_often_as_the_settings_say() -> None:
    outcomes = asked([[0], [1]], retries=2)
    one_pass(outcomes, {0: None, 1: ILL})
    assert outcomes.groups_to_train() == [[1]]
    one_pass(outcomes, {1: ILL})
    assert outcomes.groups_to_train() == [[1]]
    one_pass(outcomes, {1: ILL})
    assert outcomes.tries(1) == 3
    assert outcomes.groups_to_train() == []
    assert outcomes.left_out == {1: "it was ill"}
    assert [outcomes.state(client) for client in (0, 1)] == [ClientState.DONE, ClientState.FAILED]


def test_a_group_is_trained_as_a_whole_and_what_is_done_stays_done() -> None:
    outcomes = asked([[0, 1]], stored=[0])
    assert outcomes.groups_to_train() == [[0, 1]]
    one_pass(outcomes, {0: ILL, 1: None})
    assert sorted(outcomes.done) == [0, 1]
    assert outcomes.left_out == {}


def test_nothing_is_counted_against_a_client_that_did_not_start() -> None:
    outcomes = asked([[0], [1]], retries=0)
    outcomes.begin_pass()
    outcomes.finished(0, work(0))
    outcomes.not_started(1, LOST)
    assert outcomes.end_pass() == {}
    assert outcomes.state(1) == ClientState.WAITING
    assert outcomes.groups_to_train() == [[1]]


def test_clients_that_never_start_fail_after_two_passes_without_progress() -> None:
    outcomes = asked([[0], [1]], retries=5)
    for expected in ({}, {1: LOST}):
        outcomes.begin_pass()
        outcomes.failed(0, LOST)
        outcomes.not_started(1, LOST)
        assert outcomes.end_pass() == expected


def test_progress_starts_the_count_of_passes_again() -> None:
    outcomes = asked([[0], [1], [2]], retries=5)
    for finished in (None, 0, None):
        outcomes.begin_pass()
        if finished is not None:
            outcomes.finished(finished, work(finished))
        outcomes.not_started(2, LOST)
        assert outcomes.end_pass() == {}


def test_a_damaged_answer_is_made_again_as_often_as_a_client_is_tried() -> None:
    outcomes = asked([[0], [1]], stored=[0, 1])
    outcomes.begin_aggregation()
    assert outcomes.rejected(1, DAMAGED) == 1
    assert outcomes.groups_to_train_again() == [[1]]
    outcomes.give_to_training([[1]], lambda client: None)
    one_pass(outcomes, {1: None})
    assert sorted(outcomes.done) == [0, 1]
    assert outcomes.left_out == {}
    assert outcomes.rejected(1, DAMAGED) == 2
    assert outcomes.groups_to_train_again() == []
    assert outcomes.left_out == {1: "its file is damaged"}


def test_what_failed_in_training_after_damage_is_not_trained_for_that_damage_again() -> None:
    outcomes = asked([[0], [1], [2]], retries=1, stored=[0, 1, 2])
    outcomes.begin_aggregation()
    outcomes.rejected(1, DAMAGED)
    outcomes.give_to_training([[1]], lambda client: None)
    one_pass(outcomes, {1: ILL})
    outcomes.rejected(2, DAMAGED)
    assert outcomes.groups_to_train_again() == [[2]]


def test_a_refused_message_is_not_asked_for_again_by_the_server() -> None:
    outcomes = asked([[0], [1]], stored=[0, 1])
    outcomes.begin_aggregation()
    assert outcomes.rejected(1, REFUSED) == 0
    assert outcomes.groups_to_train_again() == []
    assert outcomes.state(1) == ClientState.REFUSED


def test_those_whom_the_server_refuses_are_told_of_last() -> None:
    outcomes = asked([[0], [1], [2], [3]], retries=0, stored=[0])
    one_pass(outcomes, {3: REFUSED, 2: ILL, 1: None})
    outcomes.begin_aggregation()
    outcomes.rejected(0, REFUSED)
    outcomes.rejected(1, DAMAGED)
    assert list(outcomes.left_out) == [3, 2, 1, 0]


def test_too_few_clients_stop_the_round_with_a_sentence() -> None:
    outcomes = asked([[0], [1]], retries=0)
    outcomes.drop([2])
    one_pass(outcomes, {0: None, 1: ILL})
    outcomes.check_enough(4, 1, [])
    with pytest.raises(RoundFailed) as raised:
        outcomes.check_enough(4, 2, [7])
    assert str(raised.value) == (
        "round 4: 1 of 2 clients succeeded, 2 are needed (participation.minimum). client 1: it was ill; quarantined: 7"
    )
    assert (outcomes.dropped, outcomes.known, outcomes.state(2)) == ([2], {0, 1, 2}, ClientState.DROPPED)
