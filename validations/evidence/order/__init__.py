"""Evidence about the data order: can a permutation be told from a true random one, and will the data change along the training order?"""
