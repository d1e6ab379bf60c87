"""Programs of ours that stand in for an engine's own command where it has none."""
