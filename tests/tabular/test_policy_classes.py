"""Policy classes against loops over their definition and against the policy gradient theorem."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular

SHAPE = (3, 2, 4)
FRESH = int(os.environ["FRESH_SEED"])
CONTEXTS = np.array([[0, 0], [0, 1], [1, 1]])
FEATURES = np.random.default_rng(7).normal(size=(*SHAPE, 5))
CLASSES = {
    "table": tabular.per_turn_table(SHAPE),
    "shared": tabular.shared_logits(SHAPE),
    "linear": tabular.linear(jnp.asarray(FEATURES, jnp.float32)),
    "aliased": tabular.aliased(CONTEXTS, 4),
    "tree": tabular.token_tree(3, 2, 2, 2),
}
SIZES = {"table": (3, 2, 4), "shared": (2, 4), "linear": (5,), "aliased": (3, 2, 4)}


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def by_definition(name, params):
    """[H, S, A] from the definition, entry by entry."""
    policy = np.zeros(SHAPE)
    for h, s in np.ndindex(SHAPE[:2]):
        if name == "table":
            policy[h, s] = softmax(params[h, s])
        elif name == "shared":
            policy[h, s] = softmax(params[s])
        elif name == "linear":
            policy[h, s] = softmax(FEATURES.astype(np.float32).astype(float)[h, s] @ params)
        elif name == "aliased":
            policy[h, s] = softmax(params[h, CONTEXTS[h, s]])
        else:  # the root is node 0; after token 0 or 1 comes node 1 or 2
            for action in range(4):
                first, second = divmod(action, 2)
                root, leaf = softmax(params[h, s, 0]), softmax(params[h, s, 1 + first])
                policy[h, s, action] = root[first] * leaf[second]
    return policy


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", [0, FRESH])
def test_policies_are_those_of_the_definition(name, seed):
    family = CLASSES[name]
    params = family.init(jax.random.key(seed))
    assert params.shape == SIZES.get(name, (3, 2, 3, 2)) and params.dtype == jnp.float64
    expected = by_definition(name, np.asarray(params))
    found = family.policy(params)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14, err_msg=f"{seed=}")
    np.testing.assert_allclose(np.exp(family.log_probs(params)), expected, atol=1e-14)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-14)


def test_tokens_of_a_tree_of_three_levels():
    tree = tabular.token_tree(1, 1, 3, 3)
    params = tree.init(jax.random.key(FRESH))
    assert params.shape == (1, 1, 1 + 3 + 9, 3)
    tokens = np.asarray(tree.token_log_probs(params))
    assert tokens.shape == (1, 1, 27, 3)
    rows = np.log(softmax(np.asarray(params)))[0, 0]
    for action in range(27):
        a, b, c = action // 9, action // 3 % 3, action % 3
        expected = [rows[0, a], rows[1 + a, b], rows[4 + 3 * a + b, c]]
        np.testing.assert_allclose(tokens[0, 0, action], expected, atol=1e-14)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "tree"])
def test_gradient_is_the_policy_gradient_through_the_logits(name, draw):
    family = CLASSES[name]
    mdp, _ = draw(FRESH, *SHAPE)
    params = family.init(jax.random.key(FRESH))
    found = jax.grad(lambda p: tabular.performance(mdp, family.policy(p)))(params)
    slopes = tabular.policy_gradient(mdp, family.policy(params))
    expected = jax.vjp(family.logits, params)[1](slopes)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13, err_msg=f"{FRESH=}")
    assert abs(expected).max() > 1e-6, f"{FRESH=}"


def test_gradient_of_a_token_tree_is_the_score_function_sum(draw):
    # d log pi(a) / d logits of a node on the way of a = one-hot(token) - softmax, else 0.
    family = CLASSES["tree"]
    mdp, _ = draw(FRESH, *SHAPE)
    params = family.init(jax.random.key(FRESH))
    rows = softmax(np.asarray(params))
    policy = np.asarray(family.policy(params))
    visits = np.asarray(tabular.occupancy(mdp, policy))[:, :, None] * policy
    weight = visits * np.asarray(tabular.advantages(mdp, policy))
    expected = np.zeros(params.shape)
    for h, s, action in np.ndindex(SHAPE):
        first, second = divmod(action, 2)
        for node, token in ((0, first), (1 + first, second)):
            expected[h, s, node] += weight[h, s, action] * (np.eye(2)[token] - rows[h, s, node])
    found = jax.grad(lambda p: tabular.performance(mdp, family.policy(p)))(params)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13, err_msg=f"{FRESH=}")


def test_refusals_and_scale():
    with pytest.raises(ValueError, match="features has shape"):
        tabular.linear(jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match="num_tokens"):
        tabular.token_tree(2, 2, 1, 2)
    with pytest.raises(ValueError, match="length"):
        tabular.token_tree(2, 2, 2, 0)
    with pytest.raises(ValueError, match="contexts"):
        tabular.aliased(np.array([[0, -1]]), 2)
    family = tabular.per_turn_table((10, 10, 40))
    draws = np.asarray(family.init(jax.random.key(FRESH), scale=3.0))
    assert abs(draws.std() - 3.0) < 5 * 3.0 / np.sqrt(2 * draws.size), f"{FRESH=}"
