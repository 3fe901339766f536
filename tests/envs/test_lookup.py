"""Multi-hop search: the map, the rules, and the expert against brute-force expectations."""

from collections import Counter
from math import comb

import pytest

from rtpo_jax.envs import Chance, Lookup

ENTITIES = [letter + digit for letter in "abcde" for digit in "01234567"]
RELATIONS = "klmnopqrstu"
EXPERT = {"error_rate": 0.0, "systematic_rate": 0.0}


def demonstrate(env, task_seed, stream, **rates):
    """Return the last step and the number of turns of one demonstration."""
    state, _ = env.reset(env.make_task(task_seed))
    state = env.fork(state, stream)
    turns = 0
    while True:
        step = env.step(state, env.demonstrate(state, stream, **(EXPERT | rates)))
        turns, state = turns + 1, step.state
        if step.ended:
            return step, turns


def follow(env, seed, hops):
    """Walk the chain through replies alone; return the state and the entity reached."""
    state, question = env.reset(env.make_task(seed))
    entity, relations = question[:2], question[2:-1]
    for relation in relations[:hops]:
        step = env.step(state, f"Q{entity}{relation}")
        state, entity = step.state, step.observation[1:3]
        assert step.observation == f">{entity}." and entity in ENTITIES
    return state, entity


@pytest.mark.parametrize("hops", [1, 4, 11])
def test_following_the_replies_leads_to_the_one_right_answer(hops):
    env = Lookup(num_hops=hops)
    for seed in range(20):
        state, question = env.reset(env.make_task(seed))
        assert question[:2] in ENTITIES and question[-1] == "?"
        assert len(set(question[2:-1])) == hops and set(question[2:-1]) <= set(RELATIONS)
        state, entity = follow(env, seed, hops)
        for answer in ENTITIES:
            step = env.step(state, f"A{answer}")
            assert step.ended and step.observation == ""
            assert step.reward == float(answer == entity)
            assert env.outcome(step.state) == (answer == entity, hops, 0)


def test_the_map_is_uniform_and_differs_between_tasks():
    env = Lookup(num_hops=1)
    replies = []
    for seed in (1, 2):
        state, _ = env.reset(env.make_task(seed))
        replies.append([env.step(state, f"Q{e}{r}").observation for e in ENTITIES for r in "kl"])
    assert sum(a == b for a, b in zip(*replies, strict=True)) < 12  # mean 2 of 80
    by_relation = [replies[0][0::2], replies[0][1::2]]
    assert sum(a == b for a, b in zip(*by_relation, strict=True)) < 9  # mean 1 of 40
    assert len(set(by_relation[0])) > 15  # mean 40 (1 - 1/e) = 25
    counts = Counter(follow(env, seed, 1)[1] for seed in range(8000))
    assert all(abs(counts[e] - 200) < 5 * 200**0.5 for e in ENTITIES)


@pytest.mark.parametrize("errors", ["repairable", "fatal"])
@pytest.mark.parametrize("hops", [1, 2, 4, 6])
def test_noiseless_expert_always_succeeds_in_the_minimum_of_turns(hops, errors):
    for slack in (0, 2):
        env = Lookup(num_hops=hops, slack_turns=slack, errors=errors)
        assert env.num_turns == hops + 1 + slack
        for seed in range(50):
            step, turns = demonstrate(env, seed, seed)
            assert step.reward == 1.0 and turns == hops + 1


@pytest.mark.parametrize("rates", [(0.15, 0.0), (0.0, 0.7), (0.1, 0.5)])
def test_fatal_expert_success_is_a_product(rates):
    """A turn is right with probability 1-e, a query for k, l, m with (1-e)(1-s); all must be."""
    error, systematic = rates
    env = Lookup(num_hops=3, errors="fatal", slack_turns=1)
    mean = variance = wins = 0.0
    for seed in range(2500):
        count = sum(relation in "klm" for relation in env.make_task(seed).relations)
        p = (1 - error) ** 4 * (1 - systematic) ** count
        mean, variance = mean + p, variance + p * (1 - p)
        step, _ = demonstrate(env, seed, seed, error_rate=error, systematic_rate=systematic)
        wins += step.reward
    assert abs(wins - mean) < 5 * variance**0.5, (wins, mean)


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_repairable_expert_success_is_a_binomial_tail(slack):
    """The h hops must be done within the first h + slack turns, then the answer must be right."""
    hops, error = 3, 0.3
    env = Lookup(num_hops=hops, slack_turns=slack)
    q, before = 1 - error, hops + slack
    tail = sum(comb(before, j) * q**j * error ** (before - j) for j in range(hops, before + 1))
    count = 2500
    wins = sum(demonstrate(env, s, s, error_rate=error)[0].reward for s in range(count))
    p = tail * q
    assert abs(wins - count * p) < 5 * (count * p * (1 - p)) ** 0.5, (wins, count * p)


def test_tool_failures_cost_the_expert_turns_but_doom_nothing():
    """As above with a failing tool instead of a failing expert; the answer cannot fail."""
    hops, slack, failure, count = 2, 2, 0.4, 2500
    env = Lookup(hops, slack_turns=slack, errors="fatal", chance=Chance(tool_failure=failure))
    before = hops + slack
    p = sum(
        comb(before, j) * (1 - failure) ** j * failure ** (before - j)
        for j in range(hops, before + 1)
    )
    wins = sum(demonstrate(env, seed, seed)[0].reward for seed in range(count))
    assert abs(wins - count * p) < 5 * (count * p * (1 - p)) ** 0.5, (wins, count * p)


def test_one_untrue_hop_misleads_the_expert():
    """One hop, untrue with probability .3: the expert believes it and answers it."""
    env, count = Lookup(num_hops=1, chance=Chance(observation_noise=0.3)), 2500
    wins = sum(demonstrate(env, seed, seed)[0].reward for seed in range(count))
    assert abs(wins - 0.7 * count) < 5 * (count * 0.21) ** 0.5


def test_systematic_mistake_is_one_fixed_action():
    env = Lookup(num_hops=4)
    for seed in range(60):
        state, question = env.reset(env.make_task(seed))
        relation = question[2]
        actions = {env.demonstrate(state, s, error_rate=0.0, systematic_rate=1.0) for s in range(5)}
        asked = {"k": "n", "l": "o", "m": "p"}.get(relation, relation)
        assert actions == {f"Q{question[:2]}{asked}"}


def test_random_mistakes_are_well_formed_wrong_and_spread_out():
    env = Lookup(num_hops=1)
    state, question = env.reset(env.make_task(1))
    queries = Counter(
        env.demonstrate(state, s, error_rate=1.0, systematic_rate=0.0) for s in range(3000)
    )
    wrong = [r for r in RELATIONS if r != question[2]]
    assert set(queries) == {f"Q{question[:2]}{relation}" for relation in wrong}
    assert all(abs(count - 300) < 5 * 300**0.5 for count in queries.values())
    state, entity = follow(env, 1, 1)
    answers = {env.demonstrate(state, s, error_rate=1.0, systematic_rate=0.0) for s in range(1000)}
    assert answers == {f"A{other}" for other in ENTITIES if other != entity}


MALFORMED = ["", "Q", "A", "Qd6", "d6u", "Ad6u", "Qf6u", "Qd8u", "Qd6v", "Qd6uu", "qd6u", "Ad6 "]
MALFORMED += ["Qd6\n", "A d6", "Qd6u;", "AQd6", "\u00e9" * 4]


@pytest.mark.parametrize("action", MALFORMED)
def test_malformed_actions_cost_a_turn(action):
    env = Lookup(num_hops=2, slack_turns=1)
    state, _ = env.reset(env.make_task(0))
    step = env.step(state, action)
    assert step.observation == ">!." and step.reward == 0.0 and not step.ended
    assert env.outcome(step.state) == (False, 0, 1)
    # one turn of slack repairs it ...
    state = step.state
    while not state.episode.ended:
        state = env.step(state, env.demonstrate(state, 0, **EXPERT)).state
    assert env.outcome(state) == (True, 2, 1)
    # ... and with fatal errors nothing does
    fatal = Lookup(num_hops=2, slack_turns=1, errors="fatal")
    state = fatal.step(fatal.reset(fatal.make_task(0))[0], action).state
    while not state.episode.ended:
        state = fatal.step(state, fatal.demonstrate(state, 0, **EXPERT)).state
    assert fatal.outcome(state) == (False, 2, 1)


def test_a_doomed_episode_shows_the_same_replies():
    repairable, fatal = Lookup(2, slack_turns=1), Lookup(2, slack_turns=1, errors="fatal")
    results = []
    for env in (repairable, fatal):
        state, question = env.reset(env.make_task(4))
        wrong = next(r for r in RELATIONS if r not in question)
        observations = [(step := env.step(state, f"Q{question[:2]}{wrong}")).observation]
        while not step.ended:
            step = env.step(step.state, env.demonstrate(step.state, 0, **EXPERT))
            observations.append(step.observation)
        results.append((observations, step.reward))
    assert results[0][0] == results[1][0]
    assert (results[0][1], results[1][1]) == (1.0, 0.0)


@pytest.mark.parametrize(("errors", "reward"), [("repairable", 1.0), ("fatal", 0.0)])
def test_asking_a_known_hop_again_is_an_error_like_any_other(errors, reward):
    env = Lookup(num_hops=2, slack_turns=1, errors=errors)
    state, question = env.reset(env.make_task(6))
    query = "Q" + question[:3]
    first = env.step(state, query)
    again = env.step(first.state, query)
    assert again.observation == first.observation and again.state.path == first.state.path
    state = again.state
    while not state.episode.ended:
        step = env.step(state, env.demonstrate(state, 0, **EXPERT))
        state = step.state
    assert step.reward == reward


def test_out_of_turns_without_an_answer():
    env = Lookup(num_hops=1)
    state, question = env.reset(env.make_task(0))
    query = "Q" + question[:3]
    step = env.step(env.step(state, query).state, query)
    assert step.ended and step.observation == "" and step.reward == 0.0
    assert env.outcome(step.state) == (False, 2, 0)


def test_certain_failure_and_certain_noise():
    failing = Lookup(num_hops=2, chance=Chance(tool_failure=1.0))
    state, question = failing.reset(failing.make_task(0))
    step = failing.step(state, "Q" + question[:3])
    assert step.observation == ">~." and step.state.path == (question[:2],)
    assert failing.outcome(step.state).tool_calls == 1
    truthful, noisy = Lookup(2), Lookup(2, chance=Chance(observation_noise=1.0))
    shown = Counter()
    for stream in range(2000):
        state, _ = noisy.reset(noisy.make_task(0))
        shown[noisy.step(noisy.fork(state, stream), "Q" + question[:3]).observation] += 1
    truth = truthful.step(truthful.reset(truthful.make_task(0))[0], "Q" + question[:3]).observation
    assert set(shown) == {f">{entity}." for entity in ENTITIES} - {truth}


def test_asking_again_replaces_a_belief():
    env = Lookup(num_hops=2, slack_turns=2, chance=Chance(observation_noise=0.5))
    state, question = env.reset(env.make_task(2))
    query = "Q" + question[:3]
    truth = env.make_task(2)
    true_reply = Lookup(2).step(Lookup(2).reset(truth)[0], query).observation
    untrue = next(
        step.state
        for s in range(100)
        if (step := env.step(env.fork(state, s), query)).observation != true_reply
    )
    repaired = next(
        step.state
        for s in range(100)
        if (step := env.step(env.fork(untrue, s), query)).observation == true_reply
    )
    assert untrue.path != repaired.path == (question[:2], true_reply[1:3])
    truthful = Lookup(num_hops=2, slack_turns=2)
    while not repaired.episode.ended:
        action = truthful.demonstrate(repaired, 0, **EXPERT)
        repaired = truthful.step(repaired, action).state
    assert truthful.outcome(repaired).success


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hops": 0}, "num_hops is 0; give an integer from 1 to 11"),
        ({"num_hops": 12}, "num_hops is 12; give an integer from 1 to 11"),
        ({"num_hops": True}, "num_hops is True; give an integer"),
        ({"slack_turns": -1}, "slack_turns is -1; give an integer at least 0"),
        ({"errors": "none"}, "errors is 'none'; choose one of 'repairable', 'fatal'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Lookup(**settings)
