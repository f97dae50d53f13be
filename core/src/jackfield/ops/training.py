"""Training: the loss, its gradient, the gradient of attention, and the steps that change weights."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Check, Work, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.gradients import equal_shapes, softmax_backward
from jackfield.ops.norms import softmax
from jackfield.rules import (
    all_of,
    always,
    grouped,
    has_last_axis,
    like,
    per_element,
    per_operand_element,
    rank_of,
    same_as,
    touched,
    uneven_row,
)
from jackfield.spec import Shape, Spec


def _some_rows(call: Call) -> None:
    shape = call["logits"].shape
    if 0 in shape[:-1]:
        raise call.shape_error(f"logits is {list(shape)}: a mean over rows needs at least one")


_LOSS_CHECK = all_of(has_last_axis("logits"), equal_shapes("logits", "labels"), _some_rows)


@op(
    shape=lambda _: (),
    dtype=always(f32),
    work=per_operand_element("logits", 6),
    accepts={"logits": (f32,), "labels": (f32,)},
    check=_LOSS_CHECK,
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(3, 5, low=-4, high=4), rand(3, 5, low=0, high=0.4)),
        case(rand(2, 2, 257, low=-99, high=99), rand(2, 2, 257, low=0, high=0.01)),
        case(rand(33, 256), rand(33, 256, low=0, high=0.01)),
        case(values([[1e4, -1e4, 0.0]]), values([[1.0, 0.0, 0.0]])),
        case(values([[INF, 1.0]]), values([[0.5, 0.5]])),
        case(values([[-INF, 1.0]]), values([[0.0, 1.0]])),
        case(values([[NAN, 1.0]]), values([[0.5, 0.5]])),
        case(rand(4, 1), rand(4, 1)),
        case(rand(5), rand(5, low=0, high=0.4)),
        case(rand(4, 0), rand(4, 0)),
        case(rand(0, 4), rand(0, 4), raises=ShapeError),
        case(rand(3, 5), rand(3, 4), raises=ShapeError),
        case(rand(), rand(), raises=ShapeError),
        case(rand(3, 5, dtype=f16), rand(3, 5), raises=DTypeError),
    ],
)
def cross_entropy(logits: Array, labels: Array) -> Array:
    """The loss of a classifier: -mean over rows of sum(labels * log_softmax(logits)).

    logits, labels: f32 (..., n), equal shapes; labels are shares, usually 0 and 1. A logit of -inf with label 0 gives
    NaN, for 0 * -inf is none. Returns: f32 (). Raises: ShapeError, also where there is no row.
    """
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    shifted = logits - top
    logs = shifted - np.log(np.sum(np.exp(shifted), -1, keepdims=True))
    return np.asarray(-np.mean(np.sum(labels * logs, -1)))


def _loss_gradient(call: Call) -> Shape:
    if call["grad"].shape != ():
        raise call.shape_error(f"grad is {list(call['grad'].shape)}, must be a single number []")
    return call["logits"].shape


def _shares(_: Call, labels: Array) -> str | None:
    """With another sum the gradient of a row would be softmax times that sum, minus the labels."""
    found = uneven_row(labels, "labels", least=1)
    return found and f"{found}, labels are shares of 0 to 1 that sum to 1: divide the row by its sum"


@op(
    shape=_loss_gradient,
    dtype=like("logits"),
    work=per_element(8),
    accepts={"grad": (f32,), "logits": (f32,), "labels": (f32,)},
    check=_LOSS_CHECK,
    promises={"labels": _shares},
    inplace=("logits",),
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(), rand(3, 5, low=-4, high=4), rand(3, 5, low=0, high=0.4)),
        case(rand(), rand(2, 2, 257, low=-99, high=99), rand(2, 2, 257, low=0, high=0.01)),
        case(values(1.0), values([[1e4, -1e4, 0.0], [NAN, 1.0, 1.0]]), values([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])),
        case(values(-2.0), values([[-INF, 1.0], [INF, 1.0]]), values([[0.0, 1.0], [0.5, 0.5]])),
        case(rand(), rand(4, 1), rand(4, 1)),
        case(rand(), rand(5), rand(5)),
        case(rand(), rand(4, 0), rand(4, 0)),
        case(rand(1), rand(3, 5), rand(3, 5), raises=ShapeError),
        case(rand(), rand(0, 4), rand(0, 4), raises=ShapeError),
        case(rand(), rand(3, 5), rand(5, 3), raises=ShapeError),
        case(rand(), rand(3, 5, dtype=f16), rand(3, 5), raises=DTypeError),
    ],
)
def cross_entropy_backward(grad: Array, logits: Array, labels: Array) -> Array:
    """The gradient of cross_entropy: (softmax(logits) - labels) * grad / rows.

    grad: f32 (). logits, labels: f32 (..., n), those of cross_entropy; the labels of a row must be shares that sum to
    1. Returns: f32, shape of logits. Raises: ShapeError.
    """
    shares = np.asarray(softmax.body(logits))
    return (shares - labels) * grad / max(1, np.prod(logits.shape[:-1]))


def _packed(call: Call) -> Shape:
    for name in ("grad", "q", "k", "v"):
        rank_of(call, name, 4, 4)
    grad, q, k, v, mask = call["grad"], call["q"], call["k"], call["v"], call.get("mask")
    (S, H, T, Dk), (_, Hkv, N, _) = q.shape, k.shape
    if k.shape != (S, Hkv, N, Dk) or v.shape[:3] != (S, Hkv, N) or grad.shape != (S, T, H, v.shape[3]):
        raise call.shape_error(
            f"grad is {list(grad.shape)}, q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: they must be "
            "[S, T, H, Dv], [S, H, T, Dk], [S, Hkv, N, Dk] and [S, Hkv, N, Dv]"
        )
    if Hkv == 0 or H % Hkv:
        raise call.shape_error(f"q has {H} heads, k {Hkv}: the first must be a multiple of the second")
    if mask is not None:
        rank_of(call, "mask", 4, 4)
        s, h, m, n = mask.shape
        if m < T or n != N or not s or not h or S % s or H % h:
            raise call.shape_error(
                f"mask is {list(mask.shape)}, must be [s, h, {T} or more, {N}] where s divides {S} and h {H}"
            )
    return (q.size + k.size + v.size,)


def _attention_work(call: Call, result: Spec) -> Work:
    """Five products: scores and weights' gradient forward, three gradients backward."""
    q, k, v = call["q"], call["k"], call["v"]
    return Work(
        q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (3 * q.shape[3] + 2 * v.shape[3]), touched(call, result)
    )


_GRAD, _Q, _K, _V = rand(2, 3, 4, 5), rand(2, 4, 3, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 5)


@op(
    shape=_packed,
    dtype=like("q"),
    work=_attention_work,
    accepts={"grad": (f32,), "q": (f32,), "k": (f32,), "v": (f32,), "mask": (f32, f16)},
    tolerance="R",
    priority="P2",
    cases=[
        case(_GRAD, _Q, _K, _V, scale=0.3),
        case(_GRAD, _Q, _K, _V, rand(1, 2, 4, 7, shut=0.3), scale=0.3),
        case(rand(1, 33, 1, 4), rand(1, 1, 33, 4), rand(1, 1, 33, 4), rand(1, 1, 33, 4), scale=0.5),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1), scale=1.0),
        case(_GRAD, _Q, _K, _V, rand(1, 1, 3, 7, shut=1.0), scale=0.3),
        case(rand(2, 0, 4, 5), rand(2, 4, 0, 8), _K, _V, scale=0.3),
        case(_GRAD, _Q, rand(2, 2, 0, 8), rand(2, 2, 0, 5), scale=0.3),
        case(rand(2, 4, 3, 5), _Q, _K, _V, scale=0.3, raises=ShapeError),
        case(_GRAD, _Q, rand(2, 2, 7, 5), _V, scale=0.3, raises=ShapeError),
        case(_GRAD, _Q, rand(2, 3, 7, 8), rand(2, 3, 7, 5), scale=0.3, raises=ShapeError),
        case(_GRAD, _Q, _K, _V, rand(1, 3, 3, 7), scale=0.3, raises=ShapeError),
        case(_GRAD, _Q, _K, _V, rand(3, 7), scale=0.3, raises=ShapeError),
        case(rand(3, 4, 5), _Q, _K, _V, scale=0.3, raises=ShapeError),
        case(_GRAD, _Q, _K, _V, raises=AttributeValueError),
        case(_GRAD, rand(2, 4, 3, 8, dtype=f16), _K, _V, scale=0.3, raises=DTypeError),
    ],
)
def attention_backward(grad: Array, q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float) -> Array:
    """The gradients of attention without soft-cap, sinks and lists: of q, of k and of v, one behind the other.

    grad: f32 (S, T, H, Dv). q: f32 (S, H, T, Dk). k: f32 (S, Hkv, N, Dk). v: f32 (S, Hkv, N, Dv); Hkv divides H.
    mask: f32 or f16 (s, h, m, N), m >= T, as attention has it; it gets no gradient. scale: that of attention.
    Returns: f32, all elements of q's gradient, then k's, then v's: views of it have their shapes. A query that sees
    nothing gives zeros. Devices need not have it: training graphs are made of linear and softmax. Raises: ShapeError,
    AttributeValueError.
    """
    (S, H), (Hkv, N, Dk), Dv = q.shape[:2], k.shape[1:], v.shape[3]
    keys, contents = grouped(k, (S, H)), grouped(v, (S, H))
    above = grad.swapaxes(1, 2)  # (S, H, T, Dv)
    weight = np.asarray(softmax.body(q @ keys.swapaxes(2, 3), mask, scale=scale))
    score = np.asarray(softmax_backward.body(above @ contents.swapaxes(2, 3), weight, scale=scale))
    parts = (
        score @ keys,
        (score.swapaxes(2, 3) @ q).reshape(S, Hkv, H // Hkv, N, Dk).sum(2),
        (weight.swapaxes(2, 3) @ above).reshape(S, Hkv, H // Hkv, N, Dv).sum(2),
    )
    return np.concatenate([part.reshape(-1) for part in parts])


def _step_fits(count: int) -> Check:
    def check(call: Call) -> None:
        if call["params"].shape != (count,):
            raise call.shape_error(f"params is {list(call['params'].shape)}, must be [{count}]")
        for name in call.op.operands[1:-1]:
            if call[name].shape != call["target"].shape:
                raise call.shape_error(
                    f"{name} is {list(call[name].shape)} and target {list(call['target'].shape)}: they must be equal"
                )

    return check


_ADAMW = values([0.01, 0.9, 0.999, 1e-8, 0.1, 2.0, 30.0])


def _adamw_work(call: Call, result: Spec) -> Work:
    """Everything is read, and three tensors are written."""
    return Work(12 * result.size, touched(call, result) + 2 * result.nbytes)


@op(
    shape=same_as("target"),
    dtype=like("target"),
    work=_adamw_work,
    accepts=dict.fromkeys(("target", "grad", "m", "v", "params"), (f32,)),
    check=_step_fits(7),
    inplace=("target",),
    updates=True,
    also_updates=("m", "v"),
    tolerance="R",
    priority="P2",
    stored=True,
    cases=[
        case(rand(3, 5), rand(3, 5), rand(3, 5), rand(3, 5, low=0), _ADAMW),
        case(rand(2, 3, 257), rand(2, 3, 257), rand(2, 3, 257), rand(2, 3, 257, low=0), _ADAMW),
        case(rand(4), values([0.0, NAN, INF, -1e30]), rand(4), rand(4, low=0), _ADAMW),
        case(rand(4), rand(4), rand(4), values([0.0, -1.0, 1e-30, NAN]), values([0.1, 0.5, 0.5, 0.0, 0.0, 2.0, 2.0])),
        case(rand(), rand(), rand(), rand(low=0), _ADAMW),
        case(rand(0, 4), rand(0, 4), rand(0, 4), rand(0, 4), _ADAMW),
        case(rand(3, 5), rand(5, 3), rand(3, 5), rand(3, 5), _ADAMW, raises=ShapeError),
        case(rand(3, 5), rand(3, 5), rand(3, 5), rand(3, 5), rand(6), raises=ShapeError),
        case(rand(3, 5, dtype=f16), rand(3, 5), rand(3, 5), rand(3, 5), _ADAMW, raises=DTypeError),
    ],
)
def adamw_step(target: Array, grad: Array, m: Array, v: Array, params: Array) -> Array:
    """One step of AdamW: target, m and v get their new values where they lie.

    target: f32, the weights. grad: f32, their gradient. m, v: f32, the running means of grad and of its square; all of
    one shape. params: f32 (7,): rate lr, b1, b2, eps, decay, c1 = 1/(1 - b1^t), c2 = 1/(1 - b2^t) in step t.
    m = b1*m + (1-b1)*grad; v = b2*v + (1-b2)*grad^2; target = target*(1 - lr*decay) - lr * m*c1 / (sqrt(v*c2) + eps).
    Returns: the target's new value. States are changed where they lie, m and v too; of m and v that are none the new
    value is dropped. Raises: ShapeError.
    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization".
    """
    rate, b1, b2, eps, decay, c1, c2 = (float(p) for p in params)
    slope = grad.astype(np.float64)
    mean = b1 * m + (1 - b1) * slope
    square = b2 * v + (1 - b2) * slope * slope
    m[...], v[...] = mean, square
    target[...] = target * (1 - rate * decay) - rate * (mean * c1) / (np.sqrt(square * c2) + eps)
    return target


@op(
    shape=same_as("target"),
    dtype=like("target"),
    work=per_element(2),
    accepts=dict.fromkeys(("target", "grad", "params"), (f32,)),
    check=_step_fits(2),
    inplace=("target",),
    updates=True,
    tolerance="R",
    priority="P2",
    stored=True,
    cases=[
        case(rand(3, 5), rand(3, 5), values([0.1, 0.01])),
        case(rand(2, 3, 257), rand(2, 3, 257), rand(2)),
        case(rand(4), values([0.0, NAN, INF, -1e30]), values([0.1, 0.0])),
        case(rand(), rand(), rand(2)),
        case(rand(0, 4), rand(0, 4), rand(2)),
        case(rand(3, 5), rand(5, 3), rand(2), raises=ShapeError),
        case(rand(3, 5), rand(3, 5), rand(3), raises=ShapeError),
        case(rand(3, 5, dtype=f16), rand(3, 5), rand(2), raises=DTypeError),
    ],
)
def sgd_step(target: Array, grad: Array, params: Array) -> Array:
    """One step of gradient descent: target * (1 - lr*decay) - lr * grad, where the target lies.

    target: f32, the weights. grad: f32, their gradient, of the same shape. params: f32 (2,): rate lr, decay.
    Returns: the target's new value; a state is changed where it lies. Raises: ShapeError.
    """
    rate, decay = (float(p) for p in params)
    target[...] = target * (1 - rate * decay) - rate * grad.astype(np.float64)
    return target
