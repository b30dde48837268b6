"""A ClientApp as Flower's tutorials write it: a fresh network, a DataLoader that transforms image by image, SGD."""

import torch
from flower_client import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

app = ClientApp()


class Partition(Dataset[tuple[Tensor, int]]):
    """A client's images as bytes, made floats and normalised when they are asked for."""

    def __init__(self, client: int) -> None:
        held = slice(int(work().edges[client]), int(work().edges[client + 1]))
        self.images, self.labels = work().images[held], work().labels[held]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).contiguous().float().div(255)
        return image.sub_(0.5).div_(0.5), int(self.labels[index])


@app.train()
def train(message: Message, context: Context) -> Message:
    loader = DataLoader(Partition(int(context.node_config["partition-id"])), work().batch_size, shuffle=True)
    net = work().network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=work().lr)
    running, steps = 0.0, 0
    for _ in range(work().epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
            steps += 1
    metrics = MetricRecord({"train_loss": running / steps, "num-examples": len(loader.dataset), "steps": steps})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
