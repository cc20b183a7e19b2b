"""What a deep GP is: kernels, layers, likelihoods. Tensors in, tensors out."""
