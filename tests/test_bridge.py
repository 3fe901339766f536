"""Both worlds use one core: a table-lookup language model gives the exact tabular gradient.

The policy is a table of logits [H, S, A]; a context is one token that names (turn, state), an action
is one token. An engine that enumerates instead of sampling hands real `Episode`s, with their exact
probabilities as row weights, through packing, method and update. With an SGD step of size 1 the
parameter change is the gradient, compared here in float64 with `tabular` and with plain numpy.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tabular
from rtpo_jax.algorithms import GRPO, REINFORCE, RTPO, Policy, Scores, SeeUPO, Stage
from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import Episode, EpisodeBatch, Scorer, SymbolTemplate, Turn
from rtpo_jax.rollouts.packing import training_rows
from rtpo_jax.training import Updater, create_state

TOLERANCE = 1e-9


def table_log_probs(params, rows):
    """Log-probabilities of single-token actions, looked up by the context token before them."""
    num_actions = params.shape[-1]
    log_probs = jax.nn.log_softmax(params.reshape(-1, num_actions))
    contexts = jnp.take_along_axis(rows.tokens, jnp.maximum(rows.action_positions - 1, 0), axis=1)
    actions = jnp.take_along_axis(rows.tokens, rows.action_positions, axis=1)
    chosen = log_probs[contexts, actions % num_actions]
    return Scores(chosen, jnp.zeros_like(chosen))


@dataclasses.dataclass
class Enumeration:
    """An engine whose samples are all the possible ones, each with its exact probability."""

    mdp: tabular.TurnMDP

    @property
    def num_turns(self):
        return self.mdp.rewards.shape[0]

    def rollout(self, policy, tasks, copies, key):
        del tasks, key
        found = tabular.trajectories(self.mdp, jax.nn.softmax(policy.params))
        chains = [self.episode(found, i, policy.params) for i in range(len(found.probability))]
        return self.groups([((), 1.0, chains, found.probability)], copies, "group")

    def continue_from(self, policy, trunks, turn, copies, key, *, include_trunks=False):
        del key
        assert not include_trunks
        anchors = []
        for trunk, weight in zip(trunks.episodes, trunks.weights, strict=True):
            if trunk.realised(turn):
                state = trunk.turns[turn].state
                found = tabular.trajectories(
                    self.mdp, jax.nn.softmax(policy.params), turn=turn, state=state
                )
                chains = [
                    self.episode(found, i, policy.params, turn)
                    for i in range(len(found.probability))
                ]
                anchors.append((trunk.turns[:turn], weight, chains, found.probability))
        return self.groups(anchors, copies, "boundary")

    def episode(self, found, index, params, first=0):
        num_turns, num_states, _ = self.mdp.rewards.shape
        log_probs = np.asarray(jax.nn.log_softmax(params))
        turns = []
        for h in range(first, num_turns):
            if not found.turn_mask[index, h]:
                break
            s, a = int(found.states[index, h]), int(found.actions[index, h])
            turns.append(
                Turn(
                    state=s,
                    context=(h * num_states + s,),
                    action=(a,),
                    log_probs=log_probs[h, s, [a]],
                    observation="",
                    reward=float(found.rewards[index, h]),
                    policy_version=0,
                )
            )
        return tuple(turns)

    def groups(self, anchors, copies, id_field):
        """Every tuple of `copies` chains at every anchor is one group, weighted by its probability."""
        episodes, weights, ids = [], [], itertools.count()
        for prefix, weight, chains, probability in anchors:
            for members in itertools.product(range(len(chains)), repeat=copies):
                group = next(ids)
                for member in members:
                    fields = {"group": 0, "boundary": -1, id_field: group}
                    turns = prefix + chains[member]
                    episodes.append(Episode(None, question="", state=None, turns=turns, **fields))
                    weights.append(weight * np.prod(probability[list(members)]) / copies)
        return EpisodeBatch(tuple(episodes), self.num_turns, weights=tuple(map(float, weights)))

    def rows(self, trajectories, context="recorded", turns=None):
        template = SymbolTemplate(SymbolTokenizer("x"))
        return training_rows(
            trajectories, template, context, turns, length_buckets=(2,), action_buckets=(1,)
        )

    def score(self, policy, rows):
        return Scorer(table_log_probs, 512)(policy.params, rows)


def gradient(method, mdp, params, behavior=None, stage=None, trunk_params=None):
    """Gradient that the real update takes for one batch of `method`."""
    engine = Enumeration(mdp)
    behavior = params if behavior is None else behavior
    trunk_params = behavior if trunk_params is None else trunk_params
    collected = method.collect(engine, Policy(trunk_params), (), jax.random.key(0))
    stage = method.stages(engine.num_turns, jax.random.key(0))[0] if stage is None else stage
    batch = method.batch(engine, Policy(behavior), collected, stage, None, None)
    batch = jax.tree.map(np.asarray, batch)
    optimizer = optax.sgd(1.0)
    updater = Updater(table_log_probs, optimizer, micro_batch=512)
    state, metrics = updater(method, create_state(params, optimizer), batch)
    assert metrics["gradient_norm"] > 0
    return np.asarray(state.params - params)


def mdps():
    lock = tabular.lock(3)
    random = tabular.random_mdp(jax.random.key(7), 2, 2, 2)
    ending = tabular.random_mdp(jax.random.key(8), 2, 2, 2, termination=0.3)
    return {"lock": lock, "random": random, "ending": ending}


def logits_for(mdp, seed):
    return jax.random.normal(jax.random.key(seed), mdp.rewards.shape, jnp.float64)


@pytest.mark.parametrize("name", ["lock", "random"])
def test_grpo_gradient_is_the_policy_gradient_up_to_the_self_included_mean(name):
    """E over groups of G: (G - 1) / G of the policy gradient, over H by the token mean."""
    mdp = mdps()[name]
    params = logits_for(mdp, 1)
    method = GRPO(group_size=2, scale=None)
    num_turns = mdp.rewards.shape[0]
    exact = tabular.policy_gradient(mdp, jax.nn.softmax(params)) * (1 / 2) / num_turns
    np.testing.assert_allclose(gradient(method, mdp, params), exact, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "group_size"),
    [("lock", 3), ("random", 3), ("random", 4), ("ending", 3), ("ending", 4)],
)
def test_rtpo_stage_gradient_is_the_policy_gradient_of_its_turn(name, group_size):
    """RTPO, Theorem 2(a): (G - 2) / (G - 1) of the exact gradient in block k, zero elsewhere."""
    mdp = mdps()[name]
    params = logits_for(mdp, 2)
    method = RTPO(group_size=group_size)
    exact = np.asarray(tabular.policy_gradient(mdp, jax.nn.softmax(params)))
    for stage in method.stages(mdp.rewards.shape[0], jax.random.key(0)):
        (turn,) = stage.turns
        expected = np.zeros_like(exact)
        expected[turn] = exact[turn] * (group_size - 2) / (group_size - 1)
        measured = gradient(method, mdp, params, stage=stage)
        np.testing.assert_allclose(measured, expected, rtol=0, atol=TOLERANCE)


def test_rtpo_uses_trunk_states_of_theta_0_and_downstream_of_the_later_stages():
    """Upstream distribution d_k from theta_0, advantage under theta_{>k}: neither one elsewhere."""
    mdp = mdps()["random"]
    first, later = logits_for(mdp, 3), logits_for(mdp, 4)
    stage = RTPO().stages(2, jax.random.key(0))[0]
    measured = gradient(RTPO(), mdp, later, behavior=later, stage=stage, trunk_params=first)
    pi = jax.nn.softmax(later)
    occupancy = tabular.occupancy(mdp, jax.nn.softmax(first))
    exact = occupancy[1][:, None] * pi[1] * tabular.advantages(mdp, pi)[1] / 2
    np.testing.assert_allclose(measured[1], exact, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(measured[0], 0)


def off_policy_gradient(mdp, behavior, params, group_size, scale):
    """Group surrogate away from ratio 1, summed by plain loops over groups of whole chains."""
    found = tabular.trajectories(mdp, jax.nn.softmax(behavior))
    old = np.asarray(jax.nn.log_softmax(behavior))

    def surrogate(theta):
        new, total = jax.nn.log_softmax(theta), 0.0
        for members in itertools.product(range(len(found.probability)), repeat=group_size):
            returns = [float(found.rewards[i].sum()) for i in members]
            mean = sum(returns) / group_size
            std = (sum((r - mean) ** 2 for r in returns) / (group_size - 1)) ** 0.5
            for i, r in zip(members, returns, strict=True):
                if std == 0:
                    continue
                advantage = (r - mean) / (std + 1e-6) if scale else r - mean
                steps = [h for h in range(found.turn_mask.shape[1]) if found.turn_mask[i, h]]
                for h in steps:
                    s, a = found.states[i, h], found.actions[i, h]
                    ratio = jnp.exp(new[h, s, a] - old[h, s, a])
                    low, high = ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage
                    weight = np.prod(found.probability[list(members)]) / group_size / len(steps)
                    total += weight * jnp.where(low < high, low, high)
        return total

    return np.asarray(jax.grad(surrogate)(params))


@pytest.mark.parametrize("scale", [None, "group"])
def test_grpo_clipped_gradient_away_from_ratio_one_matches_plain_enumeration(scale):
    mdp = tabular.random_mdp(jax.random.key(9), 2, 1, 2, termination=0.4)
    behavior = logits_for(mdp, 5)
    params = behavior + 0.5 * logits_for(mdp, 6)
    method = GRPO(group_size=2, scale=scale)
    expected = off_policy_gradient(mdp, behavior, params, 2, scale)
    measured = gradient(method, mdp, params, behavior=behavior)
    np.testing.assert_allclose(measured, expected, rtol=0, atol=TOLERANCE)


def test_rtpo_clipped_gradient_away_from_ratio_one_matches_plain_enumeration():
    """The last turn of the random MDP: pairs of actions at each state, weighted by its occupancy."""
    mdp = mdps()["random"]
    behavior = logits_for(mdp, 5)
    params = behavior + 0.5 * logits_for(mdp, 6)
    pi = np.asarray(jax.nn.softmax(behavior))
    visits = np.asarray(tabular.occupancy(mdp, pi))[1]
    rewards = np.asarray(mdp.rewards)[1]

    def surrogate(theta):
        ratios, total = jax.nn.softmax(theta)[1] / pi[1], 0.0
        for s, pair in itertools.product(range(2), itertools.product(range(2), repeat=2)):
            for a in pair:
                advantage = rewards[s, a] - 0.5 * (rewards[s, pair[0]] + rewards[s, pair[1]])
                free = ratios[s, a] * advantage
                bound = jnp.clip(ratios[s, a], 0.8, 1.2) * advantage
                weight = visits[s] * pi[1, s, pair[0]] * pi[1, s, pair[1]] / 2
                total += weight * jnp.where(free < bound, free, bound)
        return total

    expected = np.asarray(jax.grad(surrogate)(params))
    stage = RTPO().stages(2, jax.random.key(0))[0]
    measured = gradient(RTPO(), mdp, params, behavior=behavior, stage=stage)
    np.testing.assert_allclose(measured, expected, rtol=0, atol=TOLERANCE)


def test_stale_continuations_with_open_clamp_are_unbiased_and_with_unit_clamp_are_not():
    """Eq. 109 with omega unclamped has the fresh gradient; omega held at 1 has theta_0's."""
    mdp = mdps()["random"]
    first = logits_for(mdp, 3)
    later = first.at[1].set(logits_for(mdp, 4)[1])  # stage 1 has moved the last turn
    stage = RTPO().stages(2, jax.random.key(0))[1]

    def run(**fields):
        method = RTPO(**fields)
        return gradient(method, mdp, later, behavior=later, stage=stage, trunk_params=first)

    fresh = run()
    exact = tabular.policy_gradient(mdp, jax.nn.softmax(later))[0] / 2
    np.testing.assert_allclose(fresh[0], exact, rtol=0, atol=TOLERANCE)
    open_clamp = run(continuation="stale", stale_weight_range=(0.0, 1e9), log_ratio_limit=30.0)
    np.testing.assert_allclose(open_clamp[0], exact, rtol=0, atol=TOLERANCE)
    unit = run(continuation="stale", stale_weight_range=(1.0, 1.0))
    theta_0 = tabular.policy_gradient(mdp, jax.nn.softmax(first))[0] / 2
    np.testing.assert_allclose(unit[0], theta_0, rtol=0, atol=TOLERANCE)
    assert np.abs(theta_0 - exact).max() > 1e-3


@pytest.mark.parametrize("name", ["lock", "ending"])
def test_reinforce_gradient_is_the_policy_gradient(name):
    """Leave-one-out is unbiased and tokens are summed: no factor but the constant normaliser."""
    mdp = mdps()[name]
    params = logits_for(mdp, 1)
    exact = tabular.policy_gradient(mdp, jax.nn.softmax(params)) / 5
    for baseline in ("leave_one_out", "none"):
        method = REINFORCE(group_size=2, baseline=baseline, tokens=5)
        np.testing.assert_allclose(gradient(method, mdp, params), exact, rtol=0, atol=TOLERANCE)


def test_trajectory_product_ratio_has_the_gradient_of_performance_away_from_the_behavior():
    """E[w R] = J(pi) for the product w of all turns' ratios, rows of one trajectory put together."""
    mdp = mdps()["ending"]
    behavior = logits_for(mdp, 5)
    params = behavior + 0.5 * logits_for(mdp, 6)
    fields = {"baseline": "none", "group_size": 1, "tokens": 1, "ratio_mean": False}
    method = REINFORCE(ratio="trajectory", **fields)
    engine = Enumeration(mdp)
    collected = method.collect(engine, Policy(behavior), (), jax.random.key(0))
    batch = method.batch(engine, Policy(behavior), collected, Stage(), None, None)
    # One token of each trajectory carries its weight: sums over tokens would count w once a turn.
    batch = dataclasses.replace(batch, weights=batch.weights * (batch.rows.turn_ids == 0))
    for size in (512, 8):
        updater = Updater(table_log_probs, optax.sgd(1.0), micro_batch=size)
        state, _ = updater(method, create_state(params, updater.optimizer), batch)
        exact = tabular.policy_gradient(mdp, jax.nn.softmax(params))
        np.testing.assert_allclose(state.params - params, exact, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["random", "ending"])
def test_seeupo_stage_has_the_gradient_of_the_half_updated_policy(name):
    """With the product as compound ratio, data of pi_k give the gradient at pi_k before turn 1 and
    the new policy from there on, halved by the self-included mean of two."""
    mdp = mdps()[name]
    first = logits_for(mdp, 3)
    later = first.at[1].set(logits_for(mdp, 4)[1])  # stage 1 has moved the last turn
    method = SeeUPO(group_size=2, scale=None)
    engine, stages = Enumeration(mdp), method.stages(2, jax.random.key(0))
    collected = method.collect(engine, Policy(first), (), jax.random.key(0))
    last = method.batch(engine, Policy(first), collected, stages[0], None, None)
    carry = method.carry(engine, Policy(later), last, None)
    batch = method.batch(engine, Policy(later), collected, stages[1], None, carry)
    updater = Updater(table_log_probs, optax.sgd(1.0), micro_batch=512)
    state, _ = updater(method, create_state(later, updater.optimizer), batch)
    exact = np.asarray(tabular.policy_gradient(mdp, jax.nn.softmax(later)))
    np.testing.assert_allclose((state.params - later)[0], exact[0] / 2, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal((state.params - later)[1], 0)
    old = np.asarray(tabular.policy_gradient(mdp, jax.nn.softmax(first)))
    assert np.abs(old[0] - exact[0]).max() > 1e-3  # what leaving the ratio out would give


@pytest.mark.parametrize("name", ["lock", "ending"])
def test_rtpo_with_tails_forked_at_the_start_is_grpo(name):
    """Siblings of the first boundary with all their turns trained are a group of whole episodes."""
    mdp = mdps()[name]
    # One first state: GRPO compares episodes of a task whatever state they start in.
    mdp = tabular.TurnMDP(mdp.transitions, mdp.rewards, jnp.array([1.0, 0.0]))
    params = logits_for(mdp, 2)
    last = mdp.rewards.shape[0] - 1
    for group_size in (3, 4):
        method = RTPO(group_size=group_size, tails=True)
        stage = method.stages(last + 1, jax.random.key(0))[-1]
        expected = gradient(GRPO(group_size=group_size - 1, scale=None), mdp, params)
        np.testing.assert_allclose(
            gradient(method, mdp, params, stage=stage), expected, rtol=0, atol=TOLERANCE
        )
