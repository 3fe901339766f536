"""Weights of old data: moments, clipping and its bias (RTPO, Theorem 3; SORL, Lemmas 4.1, 4.2)."""
