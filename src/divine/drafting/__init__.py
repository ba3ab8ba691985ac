"""Guessing what comes next: trees, drafters, the acceptance walk, and what drafting is worth."""

from divine.drafting.acceptance import Walk, walk
from divine.drafting.base import Budget, Drafter, DraftSession, DraftTask
from divine.drafting.tree import ROOT, DraftTree, merge

__all__ = [
    "ROOT",
    "Budget",
    "DraftSession",
    "DraftTask",
    "DraftTree",
    "Drafter",
    "Walk",
    "merge",
    "walk",
]
