"""How a deep GP is learnt: propagation, objectives, training."""
