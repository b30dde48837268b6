"""What parameters mean on the page of the Python names: as a docstring says, else as the name means everywhere."""

from typing import Any

import griffe

from fedgraft.core.settings import Training

ANYWHERE = {
    "accepted": "the clients whose reply was accepted.",
    "at": "the point at which methods are compared: `trained`, `received` or `own`, each paper's.",
    "changes": "settings by name.",
    "chosen": "the clients, by number.",
    "client": "the client.",
    "clients": "the clients.",
    "count": "how many clients are needed.",
    "device": "where tensors are, as torch names it.",
    "epochs": "how often to go through the samples.",
    "expected": "what the method expects.",
    "fields": "names with their shapes and types.",
    "figure": "`mean` over clients or `pooled` over samples.",
    "files": "sample indices of the training and of the test file, a list for each class.",
    "fitted": "how tables are prepared; if none, they are used unchanged.",
    "inbox": "the accepted replies, by client.",
    "independent": "whether every client has initial weights of its own.",
    "jobs": "what is to be done, one for each client.",
    "kind": "the set of samples: `test`, `validation` or `everyone`.",
    "known": "what the receiver already has; only changes to it are encoded.",
    "label": "the method as the table names it.",
    "length": "how many numbers are learned.",
    "lr": "the learning rate; none: the run's.",
    "message": "what is sent: named tensors.",
    "messages": "a message for each selected client.",
    "method": "the method, for the error message.",
    "metric": "which metric; none: the leading one.",
    "metrics": "the metrics.",
    "model": "the network.",
    "name": "what it is called.",
    "names": "what they are called.",
    "one": "the counts of some samples.",
    "onnx": "whether to write `model.onnx` too.",
    "other": "the counts of others.",
    "out": "the folder to write.",
    "outputs": "what the network gave for a batch.",
    "path": "the file, or the folder.",
    "phases": "parts, epochs and learning rates, one after another; none: the method's plan.",
    "picked": "the clients of the round.",
    "place": "the directory.",
    "point": "`trained`, after the last local training, or `received`, as assembled from the server's last message.",
    "purpose": "what the random numbers are for; another purpose has others.",
    "rate": "the learning rate of this step.",
    "raw": "targets as they were given.",
    "reading": "how files are read: target, split, window and so on.",
    "reason": "a sentence to show.",
    "received": "the weights that the client held before training.",
    "replies": "the replies of the clients served at the same time, by client.",
    "rng": "random numbers that follow from the seed, the scheme's text and the number of clients.",
    "round": "the number of the round, from 0.",
    "rounds": "how many rounds the run has.",
    "rows": "a row of numbers for each client.",
    "samples": "the samples to use; none: the client's training samples.",
    "seed": "the seed.",
    "sent": "the message as it arrived.",
    "server": "the server's state: named tensors, and what server and clients know of the run (`server.spec`).",
    "settings": "how to train; none: as the run does.",
    "site": "the name of the site.",
    "spec": "what server and clients know of the run: settings, networks, numbers of samples and classes.",
    "state": "named tensors.",
    "tally": "what was counted.",
    "targets": "the targets.",
    "task": "what is learned.",
    "trained": "the weights after training.",
    "truth": "the right answers.",
    "vector": "the weights of a whole network.",
    "verdict": "what is to be reported.",
    "way": "`up` or `down`.",
    "weights": "the weight of each row.",
    "what": "what the random numbers are for; another word has others.",
    "where": "whose they are, for the error message.",
    "width": "how many numbers the sum has.",
    "x": "the batch's samples.",
    "y": "the batch's targets.",
    "y_test": "labels of the test file.",
    "y_train": "labels of the training file.",
}
"""Names that mean the same wherever a hook has them."""
ATTRIBUTES = {
    "about": "what it is, in a line.",
    "name": "what it is called.",
    "task": "what is learned.",
    "seed": "the seed.",
    "device": "where tensors are.",
    "x_train": "samples to train on.",
    "y_train": "their targets.",
    "x_test": "samples to test on.",
    "y_test": "their targets.",
    "x_val": "samples for validation, where there are some.",
    "y_val": "their targets.",
    "notes": "warnings and notes, as sentences.",
    "spec": "what server and clients know of the run.",
    "directory": "its directory on disk, if it has one.",
    "config": "all settings.",
    "method": "the method.",
    "Client.layout": "how its weights are arranged in a vector.",
    "Client.loss": "the task's loss of a batch.",
    "Client.share": "the share of the clients that are selected in a round.",
    "Client.steps": "how many steps its last training took.",
    "Comparison.clients": "how many clients there are.",
    "Comparison.seeds": "the seeds that all methods have.",
    "Comparison.title": "data, clients, partition, rounds and seeds in a line.",
    "Dataset.mean": "mean of the pixels by channel, as is customary for this dataset.",
    "Dataset.std": "their deviation.",
    "Federation.augment": "whether training uses random crops and mirror images.",
    "Federation.clients": "the clients' data.",
    "Federation.input_shape": "the shape of a sample.",
    "Federation.normalise": "how pixels are scaled.",
    "Federation.partition": "who holds which samples, where a dataset was split.",
    "Federation.reading": "how files of sites were read.",
    "Federation.resize": "pixels a side that images are scaled to.",
    "Federation.validation": "the share of training samples that was set aside for validation.",
    "Field.dtype": "the type of its numbers.",
    "Field.high": "the largest value.",
    "Field.low": "the smallest value.",
    "Field.shape": "its shape.",
    "Field.total": "the sum of its numbers.",
    "Join.alone": "the site's model when it trained alone.",
    "Join.joined": "the site's model when it joined.",
    "Join.run": "the run that it joined.",
    "Join.site": "the site's name and data.",
    "Method.averages": "what the server averages, in a few words; nothing if it does not.",
    "Method.citation": "the paper.",
    "Method.headline": "the point at which the paper measures.",
    "Method.idea": "the method in a line.",
    "Method.independent_start": "whether every client has initial weights of its own.",
    "Method.reconstruction": "whether the paper leaves parts of it open.",
    "Method.sends": "what is sent, in words.",
    "Metric.bounded": "whether it lies between 0 and 1.",
    "Metric.higher": "whether more is better.",
    "Metric.percent": "whether it is shown in percent.",
    "Metric.single": "whether its counts contain single samples, which do not leave a site.",
    "Metric.tasks": "the tasks for which it is defined.",
    "Metric.title": "its heading in tables.",
    "Optimizer.slots": "the vectors that it keeps from step to step.",
    "Partition.scheme": "the scheme by which it was made.",
    "Partition.test": "each client's test samples.",
    "Partition.train": "each client's training samples.",
    "Phase.epochs": "how many; none: as in the run.",
    "Phase.lr": "the learning rate; none: the run's.",
    "Phase.part": "what is trained: `all`, `extractor` or `head`.",
    "Recommendation.metric": "the metric by which methods were compared.",
    "Recommendation.runs": "the runs of the final comparison.",
    "Run.federation": "the clients and their data.",
    "Run.observed": "matrices and figures that the method learned, round by round.",
    "Run.records": "a record of each round.",
    "Run.result": "what `result.json` holds ([format](files.md)).",
    "Run.server": "the server's last state.",
    "Scheme.paper": "where it comes from.",
    "Scheme.syntax": "how it is written.",
    "Server.secrets": "where the noise of private runs comes from.",
    "Server.tested": "whether the round is one that is tested.",
    "Simulation.data": "the clients' data.",
    "Simulation.sets": "which sets of samples clients test on.",
    "Simulation.states": "the clients' private states.",
    "Simulation.workshop": "does the client's part of a round.",
    "Source.path": "where the data are.",
    "Spec.architectures": "the networks of the run.",
    "Spec.assignment": "which of them each client has.",
    "Spec.clients": "how many clients there are.",
    "Spec.names": "the clients' names, where they have some.",
    "Spec.rounds": "how many rounds the run has.",
    "Spec.samples": "how many training samples each client has.",
    "Spec.settings": "how clients train.",
    "Sweep.comparisons": "a comparison for each setting.",
    "Task.answered": "what an answer is, in a word.",
    "Task.has_classes": "whether there are classes.",
    "Task.outputs": "how many numbers the network gives for a sample.",
}
"""Attributes that say nothing themselves, by their class or wherever they are."""


def undescribed(function: griffe.Function) -> list[str]:
    """The parameters of which its docstring says nothing."""
    said = function.docstring.value if function.docstring else ""
    listed = said.replace("*", " ")
    names = [each.name for each in function.parameters if each.name not in ("self", "cls")]
    return [name for name in names if f"``{name}``" not in said and f" {name}: " not in listed]


def meaning(attribute: griffe.Attribute) -> str:
    """What is known of an attribute."""
    home = attribute.parent.name if attribute.parent else ""
    if home == "Training" and (field := Training.model_fields.get(attribute.name)):
        return f"{field.description}."
    return ATTRIBUTES.get(f"{home}.{attribute.name}") or ATTRIBUTES.get(attribute.name, "")


class Describe(griffe.Extension):
    """Adds what is known of a parameter to the docstrings that leave it out."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Complete the docstring of a function."""
        if func.name.startswith("_") or func.docstring is None:
            return
        func.docstring.value = func.docstring.value.replace(":func:`", "`")  # links of another dialect
        known = {name: ANYWHERE[name] for name in undescribed(func) if name in ANYWHERE}
        lines = "\n".join(f"    {name}: {meaning}" for name, meaning in known.items())
        if not lines:
            return
        if "\nArgs:\n" in func.docstring.value:
            func.docstring.value = func.docstring.value.replace("\nArgs:\n", f"\nArgs:\n{lines}\n", 1)
        else:
            func.docstring.value = f"{func.docstring.value.rstrip()}\n\nArgs:\n{lines}\n"

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give an attribute of a class what is known of it."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class and (known := meaning(attr)):
            attr.docstring = griffe.Docstring(f"{known[0].upper()}{known[1:]}", parent=attr)
