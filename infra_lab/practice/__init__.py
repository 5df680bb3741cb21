"""Graded problems: the catalog, the grading of a solution, and a learner's progress."""
