"""Second moments and the split of the variance, against sums over episodes and closed forms."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]


def noise_of(mdp, seed):
    return np.random.default_rng(seed).random(mdp.rewards.shape)


def forced(policy, turn, state, action):
    forced = policy.copy()
    forced[turn, state] = np.eye(policy.shape[-1])[action]
    return forced


@pytest.mark.parametrize("seed", SEEDS)
def test_moments_are_those_of_all_continuations(seed, draw, episodes):
    mdp, policy = draw(seed)
    noise = noise_of(mdp, seed)
    plain = tabular.return_moments(mdp, policy)
    noisy = tabular.return_moments(mdp, policy, noise)
    for place in np.ndindex(mdp.rewards.shape):
        first = second = spread = 0.0
        for p, path in episodes(mdp, forced(policy, *place), place[0], place[1]):
            total = sum(reward for *_, reward in path)
            first += p * total
            second += p * total**2
            spread += p * sum(noise[h, s, a] for h, s, a, _ in path)
        message = f"{seed=} {place=}"
        assert abs(plain.first[place] - first) < 1e-12, message
        assert abs(plain.second[place] - second) < 1e-12, message
        assert abs(noisy.second[place] - second - spread) < 1e-12, message
        assert abs(plain.variance[place] - (second - first**2)) < 1e-12, message


def split_by_history(found, noise, turn):
    """Upstream, turn and downstream variance, from the episodes sorted by what happened so far."""
    total = sum(p * sum(r for *_, r in path) for p, path in found)
    before, after = {}, {}
    for p, path in found:
        prefix = tuple((s, a) for _, s, a, _ in path[:turn])
        here = path[turn][1] if len(path) > turn else None
        chosen = path[turn][2] if len(path) > turn else None
        amount = sum(r for *_, r in path)
        spread = sum(noise[h, s, a] for h, s, a, _ in path)
        past = sum(noise[h, s, a] for h, s, a, _ in path[:turn])
        for table, key in ((before, (prefix, here)), (after, (prefix, here, chosen))):
            mass, mean, square, own, ahead = table.get(key, (0.0,) * 5)
            table[key] = (mass + p, mean + p * amount, square + p * amount**2, own + p * past,
                          ahead + p * (spread - past))  # fmt: skip
    upstream = sum(mean**2 / mass + own for mass, mean, _, own, _ in before.values()) - total**2
    downstream = sum(square - mean**2 / mass + ahead for mass, mean, square, _, ahead in
                     after.values())  # fmt: skip
    between = sum(mean**2 / mass for mass, mean, *_ in after.values())
    return upstream, between - sum(m**2 / mass for mass, m, *_ in before.values()), downstream


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noisy", [False, True])
def test_decomposition_is_that_of_the_episodes(seed, noisy, draw, episodes):
    mdp, policy = draw(seed)
    noise = noise_of(mdp, seed) if noisy else np.zeros(mdp.rewards.shape)
    found = tabular.variance_decomposition(mdp, policy, noise if noisy else None)
    listed = episodes(mdp, policy)
    mean = sum(p * sum(r for *_, r in path) for p, path in listed)
    total = sum(p * (sum(r for *_, r in path) - mean) ** 2 for p, path in listed)
    total += sum(p * sum(noise[h, s, a] for h, s, a, _ in path) for p, path in listed)
    assert abs(found.total - total) < 1e-12, f"{seed=}"
    for turn in range(mdp.num_turns):
        upstream, own, downstream = split_by_history(listed, noise, turn)
        message = f"{seed=} {turn=}"
        assert abs(found.upstream[turn] - upstream) < 1e-12, message
        assert abs(found.turn[turn] - own) < 1e-12, message
        assert abs(found.downstream[turn] - downstream) < 1e-12, message
    sums = found.upstream + found.turn + found.downstream
    np.testing.assert_allclose(sums, total, rtol=0, atol=1e-12, err_msg=f"{seed=}")


def test_lock_in_closed_form():
    turns, p = 4, 0.6
    mdp = tabular.lock(turns)
    found = tabular.variance_decomposition(mdp, tabular.lock_policy(mdp, p))
    h = np.arange(turns)
    np.testing.assert_allclose(found.upstream, p ** (2 * turns - h) * (1 - p**h), atol=1e-15)
    np.testing.assert_allclose(found.turn, p ** (2 * turns - h - 1) * (1 - p), atol=1e-15)
    expected = p**turns * (1 - p ** (turns - h - 1))
    np.testing.assert_allclose(found.downstream, expected, atol=1e-15)
    assert found.total == pytest.approx(p**turns * (1 - p**turns), abs=1e-15)


def test_bernoulli_outcome_by_hand():
    # One turn: success with probability 1/4 or 3/4, each action half the time. R is a fair coin.
    mdp = tabular.TurnMDP(np.zeros((1, 1, 2, 1)), np.array([[[0.25, 0.75]]]), np.ones(1))
    policy = np.full((1, 1, 2), 0.5)
    found = tabular.variance_decomposition(mdp, policy, mdp.rewards * (1 - mdp.rewards))
    numbers = (found.upstream[0], found.turn[0], found.downstream[0], found.total)
    np.testing.assert_allclose(numbers, [0.0, 1 / 16, 3 / 16, 1 / 4], atol=1e-15)


def test_jit_vmap_and_refusals(draw):
    mdps, policies = zip(*(draw(seed) for seed in range(6)), strict=True)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *mdps)
    found = jax.jit(jax.vmap(tabular.variance_decomposition))(stack, jnp.stack(policies))
    for seed, (mdp, policy) in enumerate(zip(mdps, policies, strict=True)):
        alone = tabular.variance_decomposition(mdp, policy)
        for mapped, one in zip(found, alone, strict=True):
            np.testing.assert_allclose(mapped[seed], one, rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="reward_variances has shape"):
        tabular.return_moments(mdps[0], policies[0], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="policy"):
        tabular.return_moments(mdps[0], 2 * policies[0])
