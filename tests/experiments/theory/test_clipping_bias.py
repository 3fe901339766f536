"""The clipping-bias experiment: verdicts, replays, and its helpers against separate computations."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tabular
from experiments import clipping_bias
from experiments.theory import clipping_curves, clipping_growth, clipping_identity
from experiments.theory.claims import load_counterexample
from experiments.theory.clipping_ratios import closed_form
from tabular.paths import all_paths

FRESH = int(os.environ["FRESH_SEED"])


@pytest.fixture(scope="module")
def findings():
    with jax.enable_x64(True):
        return clipping_bias.run(clipping_bias.PRESETS["tiny"])


@pytest.mark.slow
def test_every_claim_is_as_expected(findings):
    assert [claim.claim for claim in findings.claims if not claim.as_expected] == []
    assert sum(not claim.expected for claim in findings.claims) == 4


@pytest.mark.slow
def test_counterexamples_replay_from_their_files(findings, tmp_path):
    assert set(findings.counterexamples) == {claim.counterexample for claim in findings.claims} - {
        ""
    }
    for name, counterexample in findings.counterexamples.items():
        counterexample.save(tmp_path / f"{name}.json")
        found = clipping_bias.replay(load_counterexample(tmp_path / f"{name}.json"))
        assert found.keys() == counterexample.numbers.keys()
        for key, number in counterexample.numbers.items():
            assert abs(found[key] - number) < 1e-12, f"{name} {key}"


@pytest.mark.slow
def test_tables_are_complete(findings):
    levels, ages = {"token", "turn_mean", "turn_product"}, findings.tables["ages"]
    assert (
        {row["level"] for row in ages} == levels == {r["level"] for r in findings.tables["norms"]}
    )
    assert len(findings.tables["fits"]) == 3 * 2 * 2 * 2
    assert all(row["bias_norm"] == 0.0 for row in ages if row["age"] == 0)
    # Two levels, two optimisers, two step sizes; five kinds with two controls each.
    assert len(findings.tables["controls"]) == 8 * 5 * 2
    starts = [row["performance"] for row in findings.tables["curves"] if row["iteration"] == 0]
    assert np.ptp(starts) < 1e-12


def test_partly_clipped_turn_by_hand():
    # Turn ratio 1.3 with advantages 1 (clipped) and -.5: gradient -.5 * 1.3 / 2 per turn, shared by two
    # tokens of measure 1/2; with the clipped token left in, (1 - .5) * 1.3 / 4 instead.
    numbers = clipping_identity.partly_clipped([1.0, -0.5], 1.3).numbers
    assert numbers["turn_mean gradient 0"] == pytest.approx(-0.1625, rel=1e-12)
    assert numbers["turn_mean bias 0"] == pytest.approx(0.325, rel=1e-12)
    assert numbers["turn_mean Lemma 4.1 0"] == pytest.approx(0.1625, rel=1e-12)
    assert numbers["token gradient 0"] == 0.0


def test_gae_along_episodes_by_hand():
    rng = np.random.default_rng(FRESH)
    sizes = (*clipping_identity.SIZES, 4)
    rows = rng.dirichlet(np.ones(sizes[1]), sizes) * 0.7
    mdp = tabular.TurnMDP(rows, rng.normal(size=sizes), np.array([0.3, 0.7]))
    before = rng.normal(size=(*sizes, 2))
    paths = all_paths(*sizes, early_end=True)
    found = np.asarray(clipping_identity.gae_advantages(mdp, jnp.asarray(before), paths))
    for m in rng.choice(len(paths.states), 20, replace=False):
        steps = [
            (h, paths.states[m, h], paths.actions[m, h]) for h in np.flatnonzero(paths.turn_mask[m])
        ]
        values = [v for step in steps for v in before[step]] + [0.0]
        rewards = [r for step in steps for r in (0.0, float(mdp.rewards[step]))]
        expected = 0.0
        for t in reversed(range(len(rewards))):
            error = rewards[t] + values[t + 1] - values[t]
            expected = error + clipping_identity.TRACE_DECAY * expected
            assert abs(found[m, t] - expected) < 1e-12, f"{FRESH=} {m=} {t=}"
        np.testing.assert_array_equal(found[m, len(rewards) :], 0.0)


def test_lemmas_on_fresh_mdps():
    rng = np.random.default_rng(FRESH)
    batches = clipping_identity.random_batches(rng, 5, 0.5, 0.3)
    found = clipping_identity.residuals(batches, "turn_mean", 0.2)
    for name in ("lemma 4.2", "bias", "lemma 4.1", "corrected"):
        assert found[name].max() < 1e-12, f"{FRESH=} {name}"
    assert found["uncorrected"].min() > 1e-3 and found["clipped_share"].min() > 0.01, f"{FRESH=}"
    assert found["clipping_bias_norm"].min() > 1e-4


@pytest.mark.parametrize("level", clipping_identity.LEVELS)
def test_policy_gradient_notices_wrong_advantages(level):
    rng = np.random.default_rng(FRESH)
    batches = clipping_identity.random_batches(rng, 5, 0.5, 0.3)
    found = clipping_identity.policy_gradient_errors(batches, level, 0.2)
    assert found.max() < 1e-12, f"{FRESH=}"
    wrong = batches._replace(true_advantages=batches.rows.advantages)
    found = clipping_identity.policy_gradient_errors(wrong, level, 0.2)
    assert found.min() > 1e-4, f"{FRESH=}"


def test_fit_tells_an_exponential_from_a_curve_that_levels_off():
    ages = np.arange(1, 31)
    found = clipping_growth.fit(0.01 * np.exp(0.2 * ages))
    assert found.rate == pytest.approx(0.2) and found.exponential == pytest.approx(1.0)
    assert found.late_over_early == pytest.approx(1.0)
    found = clipping_growth.fit(ages**2.0)
    assert found.power == pytest.approx(1.0) and found.exponential < 0.95
    # Leading zeros are the ages before the first ratio leaves the clip.
    levelling = np.append(np.zeros(4), 1.0 - np.exp(-0.4 * ages))
    assert clipping_growth.fit(levelling).late_over_early < 0.05
    with pytest.raises(ValueError, match="norms has 5 usable values"):
        clipping_growth.fit(np.append(np.zeros(9), np.ones(5)))


@pytest.mark.parametrize("every_turn", [False, True])
def test_shortened_world_is_the_short_one(every_turn):
    rng = np.random.default_rng(FRESH)
    world = clipping_growth.worlds(rng, 1, 4, 1)
    mdp = jax.tree.map(lambda leaf: leaf[0], world.mdp)
    policy = rng.dirichlet(np.ones(2), size=(4, 3))
    rewards = np.array(mdp.rewards[:2])
    if not every_turn:
        rewards[0] = 0.0
    short = tabular.TurnMDP(mdp.transitions[:2], rewards, mdp.start)
    found = clipping_growth.shortened(mdp, jnp.array(2), jnp.array(every_turn))
    expected = tabular.performance(short, policy[:2])
    assert abs(tabular.performance(found, policy) - expected) < 1e-14, f"{FRESH=}"
    np.testing.assert_allclose(tabular.occupancy(found, policy)[2:], 0.0)


def test_harm_is_judged_three_standard_errors_up():
    """Means by MDP -.2, -.1, -.3: -.2 + 3 x .1 / sqrt 3."""
    harms = np.array([[-0.3, 0.0, -0.3], [-0.1, -0.2, -0.3]])
    claim = clipping_curves.harm_claim(harms)
    assert claim.worst == pytest.approx(-0.2 + 0.3 / 3**0.5) and claim.holds
    assert not clipping_curves.harm_claim(harms + 0.05).holds and claim.instances == 6


@pytest.mark.slow
def test_a_single_step_of_training_is_the_policy_gradient():
    # One epoch of one batch, exact critic: J's gradient over the number of tokens, H L = 8.
    stack = clipping_growth.worlds(np.random.default_rng(FRESH), 1, 4, 2)
    mdp, params = (jax.tree.map(lambda leaf: leaf[0], part) for part in stack)
    family = clipping_growth.shared_tree(4, 3, 2)
    runs = clipping_curves.options(0, np.inf, 2.0)
    keys = jax.random.split(jax.random.key(0), 1)
    found = clipping_curves.train(stack, runs, "turn_mean", False, 1, 1, keys, 0.0)

    @jax.jit
    def performance(candidate):
        return tabular.performance(mdp, family.policy(candidate))

    step = 2.0 * jax.jit(jax.grad(performance))(params) / 8
    # At ratio 1 the geometric mean has half the gradient of the product, for turns of two tokens.
    best = tabular.optimal_values(mdp)[0] @ mdp.start
    expected = [performance(params) / best, performance(params + step / 2) / best]
    np.testing.assert_allclose(
        found["performance"][0, 0], expected, rtol=1e-12, err_msg=f"{FRESH=}"
    )
    assert found["step"][0, 0] == pytest.approx(float(jnp.linalg.norm(step)) / 2, rel=1e-12)
    assert found["bias_norm"][0, 0] == 0.0 == found["clipped"][0, 0]


@pytest.mark.parametrize(
    ("kind", "threshold", "length"),
    [("none", np.inf, 5.0), ("none", 2.0, 2.0), ("literal", np.inf, 2.5), ("relative", 1.0, 1.0)],
)
def test_the_gradient_of_a_run_by_hand(kind, threshold, length):
    # |g| = 5, |C| = 2: divided by 2; times 5 / 7 and then shortened to 1.
    option = clipping_curves.Options(jnp.array(clipping_curves.KINDS.index(kind)), threshold, 1.0)
    found, norm = clipping_curves.modified(jnp.array([3.0, 4.0]), jnp.array([0.0, 2.0]), option)
    np.testing.assert_allclose(found, length * np.array([0.6, 0.8]), rtol=1e-13)
    assert norm == 2.0


def test_matched_settings_by_hand():
    grid = np.array([0.01, 0.1, 1.0])
    lengths = np.array([0.02, 0.2, 2.0])
    found = clipping_curves.matched(lengths, grid, np.array([0.2, 0.02 * 10**0.5, 5.0, 0.001]))
    np.testing.assert_allclose(found, [0.1, 0.01 * 10**0.5, 1.0, 0.01], rtol=1e-12)
    # Where length is not monotone, the place closest to the unchanged run.
    found = clipping_curves.matched(np.array([0.3, 0.1, 0.5]), grid, np.array([0.3]))
    assert 0.1 < found[0] < 1.0


def test_adam_undoes_a_constant_factor_and_sgd_does_not():
    gradients = np.random.default_rng(FRESH).normal(size=(5, 7)) + 1.0
    ends = []
    for factor in (1.0, 0.01):
        params, state = jnp.zeros(7), clipping_curves.ADAM.init(jnp.zeros(7))
        for gradient in gradients:
            updates, state = clipping_curves.ADAM.update(factor * jnp.asarray(gradient), state)
            params = optax.apply_updates(params, updates)
        ends.append(params)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, err_msg=f"{FRESH=}")


def test_deviations_of_log_ratios_by_hand():
    # log 1.24 and log .76 with probability 1/2: half their difference.
    single = np.log(1.24 / 0.76) / 2
    for level, factor in (("token", 1.0), ("turn_mean", 0.5), ("turn_product", 2.0)):
        found = closed_form(4, level)
        assert found["log_deviation"] == pytest.approx(single * factor, rel=1e-12)
    # E[ratio^2] = (1.24^2 + .76^2) / 2 = 1.0576.
    assert closed_form(4, "turn_product")["variance"] == pytest.approx(1.0576**4 - 1, rel=1e-12)
    assert closed_form(4, "token")["variance"] == pytest.approx(0.0576, rel=1e-12)
    # For small log-ratios the lognormal form is close.
    mean = closed_form(8, "turn_mean")
    assert mean["lognormal_variance"] == pytest.approx(mean["variance"], rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": 5}, "num_updates=5: give 20 or more"),
        ({"clip": 1.5}, "clip=1.5: give a number between 0 and 1"),
        ({"horizons": (4,)}, "horizons="),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        clipping_bias.Config(**options)
