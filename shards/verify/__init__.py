"""Proof that a dataset is what its manifest says, and that its splits share nothing."""

from .examine import Findings, examine, verify

__all__ = ["Findings", "examine", "verify"]
