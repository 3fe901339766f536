"""Stable multi-turn reinforcement learning of language-model agents in pure JAX."""
