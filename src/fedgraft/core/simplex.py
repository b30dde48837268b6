"""Mixing weights that minimise a quadratic form: min beta' Q beta over beta >= 0, sum beta = 1, solved exactly.

With Q = R' R, the programme is one of non-negative least squares,

    min ||R x||^2 + (sum x - 1)^2   over x >= 0,        and then   beta = x / sum x,

for x = t beta gives t^2 beta' Q beta + (t - 1)^2, whatever t is least for the beta of the least beta' Q beta. SciPy's
``nnls`` (the active-set method of Lawson and Hanson) ends at the minimum itself, not near it.

A singular Q has many minimisers, and ``nnls`` alone would give all the weight to the first of several clients that are
alike. A ridge far below the rounding of the single-precision statistics that Q is made of turns the programme definite
and picks the most even minimiser: clients that are alike share their weight alike.
"""

import numpy as np
import scipy  # its parts when they are first used: each takes a moment to import
import torch
from torch import Tensor

RIDGE = 1e-10  # relative to each diagonal entry
BLOCK = 2**21  # entries of the matrices that are made together: 16 MB


def minimise(Q: Tensor, fallback: Tensor) -> Tensor:
    """Return the minimiser of beta' Q beta on the simplex, in float64, for each matrix of a batch ``Q`` (batch, n, n).

    The matrices have to be symmetric and positive semidefinite. One that is not finite or not semidefinite has no
    answer that could be trusted: it gets its row of ``fallback``.
    """
    beta, n = fallback.to(torch.float64).clone(), Q.shape[-1]
    answerable = torch.isfinite(Q).flatten(1).all(1).nonzero()[:, 0]
    Q = Q[answerable].to(torch.float64)
    scale = Q.diagonal(dim1=1, dim2=2).amax(1)
    A = Q / torch.where(scale > 0, scale, 1.0)[:, None, None]
    A = A + torch.diag_embed(RIDGE * A.diagonal(dim1=1, dim2=2) + n * torch.finfo(A.dtype).eps)
    R, failed = torch.linalg.cholesky_ex(A, upper=True)
    for row, root in zip(answerable[failed == 0].tolist(), R[failed == 0].numpy(), strict=True):
        try:
            x, _ = scipy.optimize.nnls(np.vstack([root, np.ones(n)]), np.append(np.zeros(n), 1.0), maxiter=30 * n)
        except RuntimeError:  # it did not come to an end
            continue
        beta[row] = torch.from_numpy(x / x.sum())
    return beta


def mixtures(H: Tensor, variances: Tensor) -> Tensor:
    """Weigh, for each client i, the variance of a mixture of clients against its squared bias; a row for each client.

    Row i minimises sum_j v_j beta_j^2 + ||h_i - sum_j beta_j h_j||^2 on the simplex, h_i being row i of ``H``: the
    form beta' Q beta with Q_jl = v_j [j = l] + <h_i - h_j, h_i - h_l>. All these Gram matrices come from a single
    one. Where the solver has no answer, a client keeps to itself.
    """
    differences = H.to(torch.float64) - H[:1]  # only differences count; identical clients give exact zeros
    K = differences @ differences.T
    K = (K + K.T) / 2
    rows, own, size = [], torch.eye(len(K), dtype=torch.float64), max(1, BLOCK // len(K) ** 2)
    for start in range(0, len(K), size):
        i = slice(start, start + size)
        # in this order the sums are symmetric to the last bit, and row and column i are zero
        Q = (K + K.diagonal()[i, None, None]) - (K[i, :, None] + K[i, None, :])
        rows.append(minimise(Q + torch.diag(variances.to(torch.float64)), own[i]))
    return torch.cat(rows)


def prune(beta: Tensor, threshold: float) -> Tensor:
    """Drop weights below ``threshold`` and let the others sum to one again; a row that would be empty stays."""
    kept = torch.where(beta < threshold, 0.0, beta)
    total = kept.sum(-1, keepdim=True)
    return torch.where(total > 0, kept / total, beta)
