"""The checks of chapter 22, the claims on trial.

    evidence_reports:  22.1, 22.2, 22.4
    claim_judges:      22.3, 22.6
    prefetch_gain:     22.5
"""

from . import claim_judges, evidence_reports, prefetch_gain  # noqa: F401  (each registers its exercises)
