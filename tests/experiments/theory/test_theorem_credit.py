"""Theorem 2 end to end at the smallest size, and its instances against numbers worked out by hand."""

import itertools
import os

import jax
import numpy as np
import pytest

import tabular
from experiments import theorem_credit
from experiments.theory import credit_phase, credit_search
from experiments.theory.claims import load_counterexample
from experiments.theory.credit_instances import lucky_lock, random_stack, stacked_laws
from tabular.estimation.accuracy import boundary_variances

FRESH = int(os.environ["FRESH_SEED"])


@pytest.fixture(scope="module")
def findings():
    said = []
    with jax.enable_x64(True):
        found = theorem_credit.run(
            theorem_credit.Config(
                size="tiny", seed=FRESH, num_mdps=6, num_enumerated=6, num_gradients=2,
                largest_group=3, sibling_counts=(2, 3), rollout_counts=(2, 5), horizons=(3, 8),
                num_shares=6,
            ),
            said.append,
        )  # fmt: skip
    assert len(said) == 6
    return found


def test_every_claim_comes_out_as_it_should(findings):
    wrong = [claim for claim in findings.claims if not claim.as_expected]
    assert not wrong, f"{FRESH=} {wrong}"
    broken = {claim.counterexample for claim in findings.claims if not claim.expected} - {""}
    assert broken == set(findings.counterexamples)
    assert len(findings.claims) == 35


def test_counterexamples_survive_the_file_and_violate_by_a_margin(findings, tmp_path):
    for name, example in findings.counterexamples.items():
        example.save(tmp_path / f"{name}.json")
        loaded = load_counterexample(tmp_path / f"{name}.json")
        again = credit_search.replay(loaded)
        assert set(again) == set(example.numbers)
        for key, number in loaded.numbers.items():
            assert again[key] == pytest.approx(number, abs=1e-12, nan_ok=True), (name, key)
        for kind in ("siblings", "episodes"):
            enumerated = example.numbers[f"mse_{kind}_enumerated"]
            assert example.numbers[f"mse_{kind}"] == pytest.approx(enumerated, abs=1e-13)
    numbers = {name: example.numbers for name, example in findings.counterexamples.items()}
    for name in ("smallest", "two_states", "rare_lock", "early_end"):
        excess = numbers[name]["mse_siblings"] - numbers[name]["mse_episodes"]
        assert excess > 5e-4 and numbers[name]["sigma_v_squared"] > 5e-4, name
    assert numbers["two_states"]["mse_episodes"] == pytest.approx(0.0831, abs=5e-5)
    assert numbers["two_states"]["mse_siblings"] == pytest.approx(0.1241, abs=5e-5)
    assert numbers["rare_lock"]["mse_episodes"] == pytest.approx(0.0036)
    assert numbers["rare_lock"]["mse_siblings"] == pytest.approx(0.0045)
    # A = .8 - .9; the state is worth .9, the average .45, so episodes expect 2/3 (A + .9 - .45) > 0.
    upstream = numbers["upstream"]
    assert upstream["advantage_of_action_0"] == pytest.approx(-0.1)
    assert upstream["expected_siblings"] == pytest.approx(-0.1 / 2)
    assert upstream["expected_episodes"] == pytest.approx(2 / 3 * (-0.1 + 0.9 - 0.45))
    # Comparisons won .7, lost .3, by an action that is worse by .1; half of them with itself.
    scaled = numbers["deviation"]
    assert scaled["advantage_of_action_0"] == pytest.approx(-0.05)
    assert scaled["expected_over_deviation"] == pytest.approx(0.2 / np.sqrt(2), abs=1e-5)


def test_early_end_by_hand(findings):
    """Total .5 (1/4 + .6) - .55^2, turn .24 given it is reached, P + V off the mean by .05."""
    found = findings.counterexamples["early_end"].numbers
    total = 0.5 * 0.25 + 0.5 * 0.6 - 0.55**2
    episodes = 4 / 9 * 0.05**2 + 2 / 9 * total + 0.24 / 9
    assert found["mse_episodes"] == pytest.approx(episodes, abs=1e-13)
    assert found["mse_siblings"] == pytest.approx(0.24 / 3, abs=1e-13)


def test_no_simpler_counterexample_by_brute_force(findings):
    """With probabilities in halves no such MDP violates 2(b); errors written out by hand."""
    found = findings.counterexamples["smallest"]
    policy = np.asarray(found.arrays["policy"])
    assert np.abs(policy * 3 - np.round(policy * 3))[1].max() < 1e-12
    for a, b, *rewards in itertools.product((0, 0.5, 1), (0, 0.5, 1), *[(0, 1)] * 4):
        rows = np.array([[a, 1 - a], [b, 1 - b]])
        pays = np.reshape(rewards, (2, 2))
        means = (rows * pays).sum(1)
        upstream = means.var()
        turn = (rows * (pays - means[:, None]) ** 2).sum() / 2
        siblings, episodes = turn / 2, 2 / 3 * upstream + turn / 3
        assert upstream == 0 or siblings <= episodes + 1e-12


def test_by_turn_table_holds_the_lock(findings):
    rows = findings.tables["by_turn"]
    place = {(r["mdp"], r["group"], r["size"], r["turn"]): r for r in rows}
    siblings, flat = (place["lock K=4 p=0.6", kind, 3, 2] for kind in ("siblings", "episodes"))
    # n = 3: 2/3 .05184 + .031104/3; bias (1/3)^2 sA; G = 3: corr^2 = 2/3 sA / Var R.
    assert siblings["mse"] == pytest.approx(2 / 3 * 0.05184 + 0.031104 / 3, abs=1e-12)
    assert siblings["squared_bias"] == pytest.approx(0.031104 / 9, abs=1e-12)
    assert flat["correlation_squared"] == pytest.approx(2 / 3 * 0.031104 / 0.11280384, abs=1e-9)
    assert siblings["spurious"] == 0.0 and flat["spurious"] > 0.4
    assert siblings["wrong"] > flat["wrong"] > 0.1
    counts = {(r["mdp"], r["group"]) for r in rows}
    assert len(counts) == 6


@pytest.mark.parametrize("luck_turn", [0, 2])
def test_lucky_lock_in_closed_form(luck_turn):
    """The lock's own variances, and luck^2 more upstream from the turn after the luck on."""
    num_turns, success, luck = 5, 0.3, 0.7
    mdp, policy = lucky_lock(num_turns, success, luck, luck_turn, horizon=7)
    parts = boundary_variances(mdp, policy)
    p = success ** (1 / num_turns)
    for turn in range(num_turns):
        own = p ** (2 * num_turns - turn) * (1 - p**turn)
        extra = luck**2 if turn > luck_turn else 0.0
        assert parts.upstream[turn] == pytest.approx(own + extra, abs=1e-13)
        assert parts.turn[turn] == pytest.approx(p ** (2 * num_turns - turn - 1) * (1 - p))
        assert parts.total[turn] == pytest.approx(success * (1 - success) + luck**2)
    np.testing.assert_allclose(parts.reach, [1] * num_turns + [0] * 2)
    assert tabular.performance(mdp, policy) == pytest.approx(success)


def test_phase_cells_by_hand(findings):
    """K = 3, no luck beyond the lock's own, n = 2, G = 3: everything from p alone."""
    cells = findings.tables["equal_turns"]
    row = next(
        r for r in cells
        if (r["horizon"], r["luck"], r["num_siblings"]) == (3, "after turn 0", 2)
        and r["luck_size"] == 0.0
    )  # fmt: skip
    p, total = 0.3 ** (1 / 3), 0.3 * 0.7
    turn = np.array([p ** (5 - k) * (1 - p) for k in range(3)]) / total
    upstream = np.array([p ** (6 - k) * (1 - p**k) for k in range(3)]) / total
    episodes, siblings = 3 / 2 - turn, 2 * (1 - upstream) - turn
    # Two siblings a turn cost 3 (trunk) + 2 (3 + 2 + 1) turns for 2 rows; an episode costs 3.
    exact = 3 * episodes.sum() / (15 / 2 * siblings.sum())
    assert row["all_turns"] == pytest.approx(exact, rel=1e-12)
    assert row["rule"] == pytest.approx(2 / (4 * (1 - upstream).mean()), rel=1e-12)
    last = 3 * episodes[2] / ((1 + 2 / 2) * siblings[2])
    assert row["last_turn_only"] == pytest.approx(last, rel=1e-12)
    best = 3 * episodes.sum() / np.sqrt([3, 2, 1] * siblings).sum() ** 2
    assert row["best_allocation"] == pytest.approx(best, rel=1e-12)
    ties = findings.tables["equal_rollouts"]
    for cell in ties:
        share, n = cell["upstream_share"], cell["group_size"] - 1
        expected = (n - 1) / n / (1 - share) * (n + 1) / n
        assert cell["correlation_ratio"] == pytest.approx(expected, rel=1e-9)


def test_luck_for_a_share_is_refused_where_impossible():
    assert credit_phase.luck_for(np.array([0.5]), 0.0, 2.0) == pytest.approx(np.sqrt(2.0))
    with pytest.raises(ValueError, match="shares span"):
        credit_phase.luck_for(np.array([0.1]), 0.5, 1.0)


def test_random_stacks_are_what_they_say():
    mdps, policies = random_stack(FRESH, 5, (3, 3, 2), branching=1, reward_levels=3)
    rows = np.asarray(mdps.transitions)
    np.testing.assert_allclose(rows.sum(-1), 1.0)
    assert ((rows > 0).sum(-1) == 1).all()
    assert set(np.unique(mdps.rewards)) <= {0.0, 0.5, 1.0}
    np.testing.assert_allclose(policies.sum(-1), 1.0)
    mdps, policies = random_stack(FRESH, 5, (3, 3, 2), termination=0.5, outcome_only=True)
    ends = 1.0 - np.asarray(mdps.transitions).sum(-1)
    assert 0.3 < ends.max() <= 0.5 + 1e-12 and ends.min() < 0.2
    assert (np.asarray(mdps.rewards)[:, :-1] == 0).all()
    with pytest.raises(ValueError, match="values lack the return"):
        stacked_laws(mdps, policies, np.array([0.0, 1.0]), to_go=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_mdps", 0),
        ("num_gradients", 0),
        ("largest_group", 7),
        ("max_denominator", 2),
        ("sibling_counts", (1, 3)),
        ("rollout_counts", ()),
        ("horizons", (2,)),
        ("num_shares", 1),
    ],
)
def test_impossible_options_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is"):
        theorem_credit.Config(**{field: value})
