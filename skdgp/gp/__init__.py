"""What a deep GP is: kernels, layers, likelihoods, architectures. Tensors in, tensors out."""
