"""What the server makes of the replies of a wave before the method sees them, where whole clients are protected."""

from collections.abc import Mapping

import torch

from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.clientlevel import CLIP, WITHIN
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server


def leaves(method: Method, server: Server, client: ClientId) -> Mapping[str, Field]:
    """Return what a client's reply looks like when it leaves: as the method expects it, and what goes along."""
    expected, privacy = method.expects(server, client), server.spec.client_privacy
    return expected if privacy is None else privacy.travels(expected)


def release(method: Method, server: Server, seen: Mapping[ClientId, Message], replies: Inbox) -> Inbox:
    """Return what the method gets of replies: as many times their noised mean as clients were to be expected.

    How many there were is a secret of the server's where it draws them by chance, and no reply is noise too.
    """
    spec, privacy = server.spec, server.spec.client_privacy
    assert privacy is not None
    clip = float(server[CLIP]) if CLIP in server else privacy.clip
    plain = {client: Message(**{n: t for n, t in reply.items() if n != WITHIN}) for client, reply in replies.items()}
    bits = {client: float(reply.get(WITHIN, torch.zeros(()))) for client, reply in replies.items()}
    if privacy.sharing:  # the noise is in the mean already, which is everybody's reply
        inbox: Inbox = plain
        within = next(iter(bits.values()), None)
    else:
        stages = spec.pipeline
        sent = stages.decode("down", stages.encode("down", method.send(server, 0), {}, {}), {})
        form = Message(**{n: torch.zeros(f.shape, dtype=f.dtype) for n, f in method.expects(server, 0).items()})
        answered = [(plain[client], seen[client], bits[client]) for client in sorted(plain)]
        total = privacy.total(form, answered, clip)
        key = spec.seed if server.secrets is None else server.secrets.noise(server.round, total)
        rng = streams.generator(key, "client noise", server.round)
        mean, within = privacy.released(form, sent, total, clip, rng)
        inbox = dict.fromkeys(range(max(1, int(privacy.expected + 0.5))), mean)
    if privacy.quantile is not None and within is not None:
        server[CLIP] = torch.tensor(privacy.adapted(clip, within), dtype=torch.float64)
    return inbox
