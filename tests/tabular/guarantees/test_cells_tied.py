"""Updates of tied rows and with one ratio per episode: finite differences and written-out stages."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.guarantees import cells, tied_updates, toys
from tabular.guarantees.cells import Case, Estimator, Update

SHAPE = (3, 2, 2)
PATHS = tabular.all_paths(*SHAPE, early_end=True)
GROUP = Estimator(group=True)


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def random_case(seed):
    """Signed rewards, a third of the episodes or so ends early."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(3), size=SHAPE)[..., :-1]
    rows *= np.where(rng.random(SHAPE) < 0.5, 1.0, 1.0 / rows.sum(-1))[..., None]
    mdp = tabular.TurnMDP(rows, rng.normal(size=SHAPE), rng.dirichlet(np.ones(2)))
    contexts = np.tile([0, 1], (SHAPE[0], 1))
    policy = rng.dirichlet(np.ones(2), size=SHAPE[:2])
    noise = rng.normal(size=SHAPE[:2])
    return Case(mdp, policy, toys.table_features(contexts, 2), contexts, noise)


def an_update(
    stages=cells.all_at_once, *, fresh=False, gradient=False, mean=False, clip=0.2, step=0.5
):
    return Update(stages(SHAPE[0]), fresh, gradient, mean, clip, np.full(3, step))


@jax.jit
def at_once(case, how, update):
    return cells.maximise(PATHS, case, how, update)


@jax.jit
def tied(case, how, update):
    return tied_updates.ascend(PATHS, case, how, update)


@jax.jit
def sequence(case, how, update):
    return tied_updates.ascend_sequence(PATHS, case, how, update)


@jax.jit
def estimates(case, how):
    return cells.estimates(case, case.policy, PATHS, how)


@jax.jit
def performance(case, policy):
    return tabular.performance(case.mdp, policy)


def change(case, found):
    return float(performance(case, found.policy) - performance(case, case.policy))


def test_a_gradient_step_is_one_softmax_step_along_the_policy_gradient(seed):
    case = random_case(seed)
    gradient = np.asarray(tabular.policy_gradient(case.mdp, case.policy))
    logits = np.log(case.policy) + 1.5 * gradient
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    update = an_update(gradient=True)
    for program in (at_once, tied):  # the same table, as rows and as features
        found = program(case, jax.tree.map(jnp.asarray, GROUP), update)
        np.testing.assert_allclose(found.policy, expected, atol=1e-11, err_msg=f"{seed=}")
    assert found.slope == pytest.approx(1.0, abs=1e-9), f"{seed=}"


def finite_difference(case, objective, size=1e-6):
    """Gradient of a function of the policy along every feature, by central differences."""
    width = case.features.shape[-1]

    def moved(theta):
        rows = case.policy * np.exp(case.features @ theta)
        return objective(rows / rows.sum(-1, keepdims=True))

    axes = size * np.eye(width)
    return np.array([(moved(axis) - moved(-axis)) / (2 * size) for axis in axes])


@pytest.mark.parametrize("mean", [False, True])
def test_a_sequence_step_climbs_the_surrogate_of_whole_episodes(mean, seed):
    case = random_case(seed)
    weights = np.asarray(tabular.path_probabilities(case.mdp, case.policy, PATHS))
    advantages = np.asarray(estimates(case, jax.tree.map(jnp.asarray, GROUP)))[:, 0]
    lengths = PATHS.turn_mask.sum(-1)

    def surrogate(policy):
        turns = np.arange(SHAPE[0])[None]
        ratios = np.where(
            PATHS.turn_mask, (policy / case.policy)[turns, PATHS.states, PATHS.actions], 1.0
        )
        whole = ratios.prod(-1) ** (1.0 / lengths if mean else 1.0)
        return weights @ np.minimum(whole * advantages, np.clip(whole, 0.8, 1.2) * advantages)

    update = an_update(mean=mean)._replace(steps=np.array([0.01, 0.0, 0.0]))
    found = sequence(case, jax.tree.map(jnp.asarray, GROUP), update)
    theta = 0.01 * finite_difference(case, surrogate)
    rows = case.policy * np.exp(case.features @ theta)
    np.testing.assert_allclose(found.policy, rows / rows.sum(-1, keepdims=True), atol=1e-9)
    assert found.gain == pytest.approx(surrogate(np.asarray(found.policy)), abs=1e-12), f"{seed=}"
    true = finite_difference(case, lambda policy: float(performance(case, policy)))
    cosine = theta @ true / np.linalg.norm(theta) / np.linalg.norm(true)
    assert found.slope == pytest.approx(cosine, abs=1e-5), f"{seed=}"
    scaled = case._replace(mdp=cells.discounted(case.mdp, 0.5))
    found = sequence(case, jax.tree.map(jnp.asarray, GROUP._replace(discount=0.5)), update)
    of_goal = sequence(scaled, jax.tree.map(jnp.asarray, GROUP), update)
    assert found.discounted_slope == pytest.approx(float(of_goal.slope), abs=1e-9), f"{seed=}"
    assert abs(found.slope - found.discounted_slope) > 1e-6, f"{seed=}"


def test_product_of_ratios_bounds_the_change_of_performance(seed):
    update = an_update(step=4.0)  # long steps: clipping acts
    for how in (GROUP, Estimator(noisy=1.0), Estimator()):
        margins, gains = [], []
        for other in range(15):
            case = random_case([seed, other])
            found = sequence(case, jax.tree.map(jnp.asarray, how), update)
            margins.append(change(case, found) - float(found.gain))
            gains.append(float(found.gain))
        assert min(margins) > -1e-11, f"{seed=} {how}"
        assert max(margins) > 1e-3 and max(gains) > 1e-3, f"{seed=} {how}"


def test_the_geometric_mean_prefers_short_answers_by_hand():
    """True slope (1 - 1.5) / 8, divided by the lengths (1 - 0.75) / 8: up where J goes down."""
    case = toys.padded(toys.two_lengths(), *SHAPE[:2])
    how = jax.tree.map(jnp.asarray, GROUP)
    for mean, sign in ((True, -1.0), (False, 1.0)):
        found = sequence(case, how, an_update(mean=mean))
        assert found.slope == pytest.approx(sign, abs=1e-9)
        assert sign * change(case, found) > 1e-3
    size = 1e-6
    ends = []
    for theta in (size, -size):
        rows = case.policy * np.exp(case.features[..., 0] * theta)
        ends.append(float(performance(case, rows / rows.sum(-1, keepdims=True))))
    assert (ends[0] - ends[1]) / (2 * size) == pytest.approx(-0.5 / 8, abs=1e-8)


def test_fresh_stages_of_tied_rows_use_old_boundaries_and_current_continuations(seed):
    """RTPO's second stage against autodiff of its surrogate written out state by state."""
    case = random_case(seed)._replace(features=toys.shared_features(SHAPE))
    update = an_update(cells.last_first, fresh=True)._replace(steps=np.array([0.3, 0.0, 0.0]))
    found = np.asarray(tied(case, jax.tree.map(jnp.asarray, Estimator()), update).policy)
    current = case.policy
    occupancy = np.asarray(tabular.occupancy(case.mdp, case.policy))
    for turn in reversed(range(SHAPE[0])):
        pull = np.zeros(SHAPE)
        advantages = np.asarray(tabular.advantages(case.mdp, current))
        pull[turn] = occupancy[turn][:, None] * current[turn] * advantages[turn]
        step = 0.3 * np.einsum("hsa,hsad->d", pull, case.features)
        rows = current * np.exp(case.features @ step)
        current = rows / rows.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, current, atol=1e-11, err_msg=f"{seed=}")


def test_carried_ratios_of_tied_rows_are_those_after_the_stage(seed):
    """SeeUPO with shared logits: M is the ratio at the end of a stage, the denominator the start's."""
    case = random_case(seed)._replace(features=toys.shared_features(SHAPE))
    update = an_update(cells.last_first)._replace(steps=np.array([0.3, 0.0, 0.0]))
    found = np.asarray(tied(case, jax.tree.map(jnp.asarray, GROUP), update).policy)
    weights = np.asarray(tabular.path_probabilities(case.mdp, case.policy, PATHS))
    advantages = np.asarray(estimates(case, jax.tree.map(jnp.asarray, GROUP)))
    turns = np.arange(SHAPE[0])[None]
    theta, carried = np.zeros(case.features.shape[-1]), np.ones(len(weights))

    def ratios(theta):
        rows = case.policy * np.exp(case.features @ theta)
        rows = rows / rows.sum(-1, keepdims=True)
        taken = (rows / case.policy)[turns, PATHS.states, PATHS.actions]
        return np.where(PATHS.turn_mask, taken, 1.0)

    for turn in reversed(range(SHAPE[0])):
        compound = carried * advantages[:, turn]

        def surrogate(theta, turn=turn, compound=compound):
            ratio = ratios(theta)[:, turn]
            return weights @ np.minimum(ratio * compound, np.clip(ratio, 0.8, 1.2) * compound)

        axes = 1e-6 * np.eye(len(theta))
        slopes = [(surrogate(theta + a) - surrogate(theta - a)) / 2e-6 for a in axes]
        theta = theta + 0.3 * np.array(slopes)
        carried = carried * ratios(theta)[:, turn]
    expected = case.policy * np.exp(case.features @ theta)
    np.testing.assert_allclose(found, expected / expected.sum(-1, keepdims=True), atol=1e-7)


@pytest.mark.parametrize("program", [tied, sequence])
def test_huge_rewards_do_not_overflow(program):
    case = random_case(0)
    mdp = tabular.TurnMDP(case.mdp.transitions, 1e9 * case.mdp.rewards, case.mdp.start)
    found = program(case._replace(mdp=mdp), jax.tree.map(jnp.asarray, GROUP), an_update())
    assert np.isfinite(found.policy).all()
    np.testing.assert_allclose(found.policy.sum(-1), 1.0, atol=1e-12)
    assert change(case, found) > 0.01
