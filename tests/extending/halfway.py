"""A method of one's own: the one file that the tests beside it run, check and deploy."""

from dataclasses import dataclass

import fedgraft as fg


@dataclass(frozen=True)
class Halfway(fg.FedAvg):
    """FedAvg whose server goes only a part of the way to the mean."""

    name = "halfway"
    idea = "the server goes a part of the way from its model to the mean"
    part: float = fg.hyper(0.5, "how much of the way", above=0, high=1)

    def merge(self, server, inbox):
        for kind, mean in self.means(server.spec, inbox).items():
            old = server[f"weights/{kind}"]
            server[f"weights/{kind}"] = old + self.part * (mean - old)
