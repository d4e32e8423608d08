"""What the model or the device failed at."""

from __future__ import annotations

from runtime.errors.tree import ExecutionError


class ModelFailed(ExecutionError):
    """The model could not be loaded; it stays out of service until it is loaded again."""

    status = 503
    code = "model_failed"


class DoesNotFit(ExecutionError):
    """The model can't be resident within the memory budget, whoever else leaves."""

    status = 503
    code = "does_not_fit"


class OutOfMemory(ExecutionError):
    """The device ran out of memory for this input even alone."""

    status = 503
    code = "out_of_memory"


class ForwardFailed(ExecutionError):
    """The model raised on this input."""

    code = "forward_failed"


class NonFiniteOutput(ExecutionError):
    """The model computed NaN or infinity for this input; a fake vector is never served."""

    code = "non_finite_output"
