"""What drafting is worth: costs of passes, how often claims come true, which nodes get rows.

Knows drafters only by the seam (drafting/base.py), and no model.
"""
