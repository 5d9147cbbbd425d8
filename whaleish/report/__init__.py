"""Showing people what a plan does: text, for now."""
