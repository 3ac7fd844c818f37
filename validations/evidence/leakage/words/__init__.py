"""The words by which texts and items are compared."""
