"""Plans on one device alone, for the suites that ask what an app would see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jackfield.backend import Reason
from jackfield.errors import PlacementError
from jackfield.graph import Tensor
from jackfield.op import OPS
from jackfield.session import Session

from .build import simple_op
from .trials import Refused, Subject

__all__ = ["chain", "strict_session"]


@contextmanager
def strict_session(subject: Subject) -> Iterator[Session]:
    """A Session on the device and nothing else. A step that it refuses ends the trial as Refused."""
    session = Session(subject.device.name, policy="strict")
    try:
        yield session
    except PlacementError as e:
        raise Refused(Reason(" ".join(str(e).split()), "op")) from None
    finally:
        session.close()


def chain(subject: Subject, x: Tensor, length: int) -> Tensor:
    """A simple op applied so often; values stay small for each of the simple ops but the products of large numbers."""
    name = simple_op(subject, x.shape)
    op, y = OPS[name], x
    count = sum(operand not in op.optional for operand in op.operands)
    for _ in range(length):
        y = op(*([y, x][:count]))
    return y
