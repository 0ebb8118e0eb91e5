"""What heads do beside the words of a corpus: on repeated tokens, in their weights, beside each other, with needles.

One file a part, and parts.py, which puts them into a profile.
"""
