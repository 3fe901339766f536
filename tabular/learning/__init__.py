"""Learners that RTPO's Theorem 1 is about, and the one that RTPO runs."""
