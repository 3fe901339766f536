"""What estimators of the advantage get right and wrong, exactly (RTPO, Theorem 2)."""
