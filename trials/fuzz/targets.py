"""The list of what is fuzzed."""

from importlib.util import find_spec

from trials.fuzz import Reader, Target, checkpoints, configurations, datasets, replies


def _messages() -> Reader:
    from trials.fuzz import messages  # needs Flower

    return messages.prepare()


TARGETS = {
    target.name: target
    for target in (
        Target("messages", "what comes over the network, as Flower's records", _messages),
        Target("replies", "what clients answer, at the boundary of every method", replies.prepare),
        Target("checkpoints", "the folders that resume reads", checkpoints.prepare),
        Target("configurations", "files, flags and texts of settings", configurations.prepare),
        Target("datasets", "npz files of sites, saved partitions, IDX files", datasets.prepare),
    )
    if target.name != "messages" or find_spec("flwr") is not None
}
