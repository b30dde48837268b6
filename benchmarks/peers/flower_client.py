"""The ClientApp of Flower's contestant, in a module of its own: each actor imports it and reads the data once."""

import os
from functools import cache

import torch
from contest import Work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

app = ClientApp()


@cache
def work() -> Work:
    torch.set_num_threads(1)
    return Work.read(os.environ["CONTEST_WORK"])


@cache
def samples(client: int) -> tuple[Tensor, Tensor]:
    return work().samples(client)


@cache
def network() -> nn.Module:
    return work().network()


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    x, y = samples(client)
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    optimizer, steps = torch.optim.SGD(net.parameters(), lr=work().lr), 0
    for _ in range(work().epochs):
        for index in torch.randperm(len(y)).split(work().batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
