"""The parts of a deep GP: kernels, layers, likelihoods and whole models.

They compute with tensors, and do not depend on estimators or training.
"""
