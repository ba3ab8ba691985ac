"""Guessing what comes next: trees, drafters, the acceptance walk, and what drafting is worth."""

from divine.drafting.acceptance import Walk, draw, walk, walk_by_rejection
from divine.drafting.base import Budget, Drafter, DraftSession, DraftTask
from divine.drafting.control.calibration import Calibration
from divine.drafting.control.controller import Controller
from divine.drafting.control.costs import CostTable, prior_costs
from divine.drafting.control.counts import DepthCounts, DraftCounts
from divine.drafting.control.experience import load_experience, save_experience
from divine.drafting.control.sequence import SequenceDraft
from divine.drafting.drafters.chain import PREFIX as CHAIN
from divine.drafting.drafters.chain import ChainDrafter
from divine.drafting.drafters.forced import ForcedDrafter
from divine.drafting.drafters.heads import HeadsDrafter
from divine.drafting.drafters.layer import LayerDrafter
from divine.drafting.drafters.ngram import NgramDrafter
from divine.drafting.drafters.ngram_table import NgramTable
from divine.drafting.drafters.ngram_table import entries_of as table_entries
from divine.drafting.drafters.synthetic import SyntheticDrafter
from divine.drafting.drafters.table import TableDrafter
from divine.drafting.drafters.text import TextDrafter
from divine.drafting.loading import load_draft_model, load_heads, prior_of
from divine.drafting.tree import ROOT, DraftTree, merge

__all__ = [
    "CHAIN",
    "ROOT",
    "Budget",
    "Calibration",
    "ChainDrafter",
    "Controller",
    "CostTable",
    "DepthCounts",
    "DraftCounts",
    "DraftSession",
    "DraftTask",
    "DraftTree",
    "Drafter",
    "ForcedDrafter",
    "HeadsDrafter",
    "LayerDrafter",
    "NgramDrafter",
    "NgramTable",
    "SequenceDraft",
    "SyntheticDrafter",
    "TableDrafter",
    "TextDrafter",
    "Walk",
    "draw",
    "load_draft_model",
    "load_experience",
    "load_heads",
    "merge",
    "prior_costs",
    "prior_of",
    "save_experience",
    "table_entries",
    "walk",
    "walk_by_rejection",
]
