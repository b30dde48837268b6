"""Mixing weights that minimise a quadratic form: min beta' Q beta over beta >= 0, sum beta = 1, solved exactly.

Freed from the constraint on the sum, the programme is

    min 1/2 x' Q x - sum x   over x >= 0,        and then   beta = x / sum x,

for w = Q x - 1 >= 0 with w = 0 where x > 0 says that Q beta = (1 + w) / sum x, which are the optimality conditions on
the simplex. The solver is the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter
23), here with block moves and for a batch of programmes at once:

    u                   the minimum over the current support, by one Cholesky factorisation
    u > 0 fails         walk from x towards u until the first weights vanish; they leave the support
    u > 0               x = u; every index with w < 0 enters the support, and if none has w < 0, x is the answer

Those that enter with u <= 0 leave again at once, but not all of them do: from the last minimum x, where w' u is the
slope towards u, at least one of them has u > 0. So sum x grows from minimum to minimum, no support comes twice, and
the end is reached. Where it grows no more although some w < 0, x is optimal to the last digits.

A singular Q has many minimisers. A ridge far below the rounding of the single-precision statistics that Q is made of
turns the programme definite and picks the most even minimiser: clients that are alike share their weight alike.
"""

import torch
from torch import Tensor

RIDGE = 1e-10  # relative to each diagonal entry
TOLERANCE = 1e-11  # how far below zero w counts as zero
GAIN = 1e-14  # the least relative growth of sum x that is not rounding
BLOCK = 2**21  # entries of the matrices that are solved together: 16 MB


def minimise(Q: Tensor, fallback: Tensor) -> Tensor:
    """Return the minimiser of beta' Q beta on the simplex, in float64, for each matrix of a batch ``Q`` (batch, n, n).

    The matrices have to be symmetric and positive semidefinite. One that is not finite or not semidefinite has no
    answer that could be trusted: it gets its row of ``fallback``.
    """
    beta, n = fallback.to(torch.float64).clone(), Q.shape[-1]
    left = torch.isfinite(Q).flatten(1).all(1).nonzero()[:, 0]
    Q = Q[left].to(torch.float64)
    scale = Q.diagonal(dim1=1, dim2=2).amax(1)
    A = Q / torch.where(scale > 0, scale, 1.0)[:, None, None]
    A = A + torch.diag_embed(RIDGE * A.diagonal(dim1=1, dim2=2) + n * torch.finfo(A.dtype).eps)

    inside = torch.ones(A.shape[:2], dtype=torch.bool)  # with everybody in, a matrix that is not definite is noticed
    x, best = torch.zeros_like(A[:, 0]), A.new_zeros(len(A))
    while len(left):
        u, definite = _solve(A, inside)
        negative = inside & (u <= 0)
        minimum = ~negative.any(1)

        reach = torch.where(negative, x / (x - u).clamp(min=torch.finfo(x.dtype).tiny), 1.0)
        step = reach.amin(1, keepdim=True)
        leave = negative & (reach <= step)
        x = torch.where(minimum[:, None], u, (x + step * (u - x)).clamp(min=0)).masked_fill(leave, 0.0)

        total = x.sum(1)
        w = ((A @ x[:, :, None])[:, :, 0] - 1).masked_fill(inside, 0.0)
        enter = minimum[:, None] & (w < -TOLERANCE)
        solved = definite & minimum & ~(enter.any(1) & (total > best * (1 + GAIN)))
        beta[left[solved]] = x[solved] / total[solved, None]

        best = torch.where(minimum, total, best)
        inside = (inside & ~leave) | enter
        going = definite & ~solved
        left, A, inside, x, best = (state[going] for state in (left, A, inside, x, best))
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


def _solve(A: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Solve A_FF u_F = 1, u = 0 elsewhere, for all supports F at once, and say which A_FF are positive definite."""
    width = int(inside.sum(1).max())
    order = inside.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    chosen = inside.gather(1, order)
    small = A[torch.arange(len(A))[:, None, None], order[:, :, None], order[:, None, :]]
    small = torch.where(chosen[:, :, None] & chosen[:, None, :], small, 0.0) + torch.diag_embed((~chosen).to(A.dtype))
    factor, failed = torch.linalg.cholesky_ex(small)
    u = torch.cholesky_solve(chosen.to(A.dtype)[:, :, None], factor)[:, :, 0]
    return torch.zeros_like(A[:, 0]).scatter(1, order, u), failed == 0
