"""The arithmetic of the claims: a module a topic, a function a claim, named as the claim is.

Each returns the claim's numbers by the names that its record gives them.
"""
