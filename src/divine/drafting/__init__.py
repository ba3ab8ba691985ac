"""Guessing what comes next: trees, drafters, the acceptance walk, and what drafting is worth."""

from divine.drafting.acceptance import Walk, draw, walk, walk_by_rejection
from divine.drafting.base import Budget, Drafter, DraftSession, DraftTask
from divine.drafting.calibration import Calibration
from divine.drafting.chain import PREFIX as CHAIN
from divine.drafting.chain import ChainDrafter
from divine.drafting.controller import Controller
from divine.drafting.costs import CostTable, prior_costs
from divine.drafting.counts import DepthCounts, DraftCounts
from divine.drafting.experience import load_experience, save_experience
from divine.drafting.forced import ForcedDrafter
from divine.drafting.guess import TextDrafter
from divine.drafting.heads import HeadsDrafter
from divine.drafting.layer import LayerDrafter
from divine.drafting.loading import load_draft_model, load_heads, prior_of
from divine.drafting.ngram import NgramDrafter
from divine.drafting.ngram_table import NgramTable
from divine.drafting.sequence import SequenceDraft
from divine.drafting.synthetic import SyntheticDrafter
from divine.drafting.table import TableDrafter
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
    "walk",
    "walk_by_rejection",
]
