"""Whatever guesses: look-ups in texts and tables, a draft model, heads, what a constraint forces.

Knows the seam (drafting/base.py), and nothing of what passes cost or who is asked when.
"""
