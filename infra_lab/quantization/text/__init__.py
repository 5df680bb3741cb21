"""The text that comes with the package: see README.md beside it for its source and licence."""
