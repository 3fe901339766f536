"""Orders of turn updates, compound ratios, ragged batches and broken assumptions (SeeUPO)."""
