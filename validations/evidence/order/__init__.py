"""Evidence about the data order: whether a permutation differs from true random ones, and whether the data changes along the training."""
