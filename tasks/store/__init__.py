"""What of a home on an object store is worked on here: kept on the store as it grows, and brought back on another machine."""
