"""Tools for people who work on whaleish; not part of the package."""
