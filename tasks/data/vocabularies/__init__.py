"""Tokenizers in folders of their own: trained on judged text, cut to a smaller size, compared."""
