"""Error bars. No torch here.

The unit of resampling is the document: the tokens of one text depend on one another (METHODS of Clark et al. 2019 and
Voita et al. 2019 count tokens; Berg-Kirkpatrick et al. 2012 show why the text is the safe unit).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REPLICATES = 2000
CONFIDENCE = 0.95


def bootstrap_weights(folds: int, *, replicates: int = REPLICATES, seed: int = 0) -> NDArray[np.float64]:
    """How often each fold is drawn in each replicate, [replicate, fold]: folds are drawn with replacement."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(folds, np.full(folds, 1 / folds), size=replicates).astype(np.float64)


def percentile_interval(
    replicates: NDArray[np.float64], *, confidence: float = CONFIDENCE
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper percentile over the first axis.

    Replicates that are NaN (a draw of few documents may hold no case of a rare kind) are left out.
    """
    tail = 50 * (1 - confidence)
    low, high = np.percentile(replicates, [tail, 100 - tail], axis=0)
    some = np.isnan(replicates).any(axis=0) & ~np.isnan(replicates).all(axis=0)
    if some.any():
        low[some], high[some] = np.nanpercentile(replicates[:, some], [tail, 100 - tail], axis=0)
    return low, high
