"""The same model as ONNX, held against onnxruntime before it is given away."""

import contextlib
import io
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from fedgraft.base.errors import UserError

CLOSE = 1e-4


def write(model: nn.Module, example: Tensor, path: Path, batch: int | None) -> None:
    """Write a model as ONNX, and refuse it if onnxruntime computes anything else than torch."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError:
        raise UserError("ONNX needs onnx, onnxscript and onnxruntime: pip install 'fedgraft[onnx]'") from None
    shapes = None if batch else ({0: torch.export.Dim("batch")},)
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns of operators that nobody asked for
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, (example,), path, dynamo=True, dynamic_shapes=shapes, external_data=False,
                input_names=["samples"], output_names=["answers", "outputs"],
            )  # fmt: skip
            wanted = model(example)[0]
            session = onnxruntime.InferenceSession(path.read_bytes())
            given = torch.from_numpy(session.run(["answers"], {"samples": example.numpy()})[0])
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise UserError(f"this model cannot be written as ONNX ({reason}); leave --onnx out") from None
    finally:
        exporter.setLevel(level)
    if not torch.allclose(given, wanted, atol=CLOSE, rtol=CLOSE):
        raise UserError("onnxruntime computes something else than torch from this model; leave --onnx out")
