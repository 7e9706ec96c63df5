"""How far each softmax is from the logit at which it breaks on a runtime: predicted, and found by running it."""
