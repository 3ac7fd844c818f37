"""What the three recipes of Trinity share: settings, mixtures, notes, sources and reported results."""
