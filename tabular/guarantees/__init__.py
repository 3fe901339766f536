"""Cells of a table of guarantees, and the search for small counterexamples (SeeUPO, Table 1)."""
