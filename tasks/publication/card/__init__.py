"""A card: what is claimed of a trained phase, each claim beside the digest that it rests on; and the check of every claim from bytes."""
