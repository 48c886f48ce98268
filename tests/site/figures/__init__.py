"""A package of figure modules like docs.figures, for tests."""
