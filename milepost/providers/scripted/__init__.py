"""Answers from a script: demonstrations, tests, and trying Milepost without a model."""
