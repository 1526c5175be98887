"""The checks of chapter 26, the claims on trial.

    evidence_reports:   26.1, 26.2, 26.4
    claim_judges:       26.3, 26.6
    prefetch_gain:      26.5
    traffic_claim:      26.7
    cells_whole_claim:  26.w1
"""

from . import cells_whole_claim, claim_judges, evidence_reports, prefetch_gain, traffic_claim  # each registers its exercises
