"""The model card: what an exported model is, how good it was for its client, and how it is used."""

from collections.abc import Mapping
from typing import Any

USES = {
    "rows": ("A table with the columns that it was trained on:", "new.csv"),
    "images": (
        "Image files of the size that it was trained on, or a folder of them (with Pillow):",
        "image.png folder",
    ),
    "texts": ("Texts, whose next character is predicted:", "text.txt"),
}
"""How new samples are given, by what they are made of."""


def text(facts: Mapping[str, Any], form: str, preparation: str | None, *, onnx: bool) -> str:
    """Write the card in Markdown."""
    shape = " x ".join(map(str, facts["input"]["shape"]))
    figures = [
        f"| {name} | {'not known' if value is None else f'{value:.4g}'} |" for name, value in facts["metrics"].items()
    ]
    point = {
        "trained": "as the client's last training left it",
        "received": "as the server's last message made it, without further training",
    }[facts["point"]]
    params = ", ".join(f"{name} = {value}" for name, value in facts["params"].items()) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return "\n".join(
        [
            f"# The model of {facts['client']}",
            "",
            f"A personal model, trained in a federation of {facts['clients']} clients with the method "
            f"{facts['method']} ({facts['rounds']} rounds, seed {facts['seed']}), {point}.",
            "",
            "| | |",
            "|---|---|",
            f"| task | {facts['task']} |",
            f"| data | {facts['data']}, {facts['training_samples']} training samples of this client |",
            f"| network | {facts['model']} |",
            f"| hyper-parameters | {params} |",
            f"| written | {facts['date']}, trained with {versions} |",
            "",
            f"## Figures on the {facts['test_samples']} test samples of {facts['client']}",
            "",
            "| metric | value |",
            "|---|---|",
            *figures,
            "",
            "They are of this client's samples alone: elsewhere the model may be worse.",
            "",
            "## Use",
            "",
            f"A sample is a tensor of shape {shape} ({facts['input']['type']}), an answer is "
            f"{'a probability for each of' if facts['kind'] == 'probabilities' else 'a value for'} "
            f"{', '.join(facts['answers'][:20])}{', ...' if len(facts['answers']) > 20 else ''}.",
            "",
            "    from model import load  # this folder's model.py; needs torch",
            '    model = load(".")',
            "    model.answers(samples)",
            "",
            *_file_use(form),
            "- `model.pt2`: the whole model, by torch.export; open it only if you trust where it came from",
            "- `model.safetensors`: the network's weights, for code of your own that builds it",
            "- `model.json`: what goes in and out, and all that this page says",
            *([f"- `{preparation}`: how raw data became samples"] if preparation else []),
            *(["- `model.onnx`: the same model for onnxruntime"] if onnx else []),
            "",
        ]
    )


def _file_use(form: str) -> list[str]:
    """How files are given, where the preparation of what is in them is known."""
    if form not in USES:
        return []
    words, given = USES[form]
    return [words, "", f"    python model.py {given} > answers.csv", ""]
