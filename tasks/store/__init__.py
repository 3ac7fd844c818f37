"""The work on a home on an object store: committed to the store, and downloaded on another machine."""
