"""Traffic of mixtures of experts: who chooses which expert, what that sends over which tier, how long it takes, where experts go."""
