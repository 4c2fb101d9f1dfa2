"""Text out of files, in processes of their own with limits on time and memory."""

from milepost.extraction.process import Limits, ProcessExtractor

__all__ = ["Limits", "ProcessExtractor"]
