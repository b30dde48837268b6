"""A newcomer's side of a round: that of a client which was not there in training."""

from fedgraft.core.client import Client
from fedgraft.core.exchange import contact, insist_on_weights
from fedgraft.core.message import Message
from fedgraft.core.method import Method


def join(method: Method, client: Client, message: Message) -> Message:
    """Do a round of a newcomer; its reply is empty, unless the server is to learn from it."""
    if "joined" not in client:  # where others began with the initial weights, it begins with what the server gives
        twin = client.fork()
        contact(method, twin)
        client["own"] = method.assemble(twin, message)
    contact(method, client)
    received = method.assemble(client, message)
    trained = method.fit_newcomer(client, received.clone())
    insist_on_weights(method, client, assemble=received, fit_newcomer=trained)
    reply = method.reply(client, received, trained) if method.newcomers == "rounds" else Message()
    client["own"] = trained
    return reply
