"""Quantizers, the methods that choose their codes, and what they cost: PTQ, and QAT."""
