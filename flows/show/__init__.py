"""What `phasewise show` says of a recipe: described as data in one set of files, printed for people in another."""
