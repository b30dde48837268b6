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


class Release:
    """Adds clipped updates up, and gives as many times their noised mean as clients were to be expected.

    How many there were is a secret of the server's where it draws them by chance, and no reply is noise too.
    """

    def __init__(self, method: Method, server: Server) -> None:
        privacy = server.spec.client_privacy
        assert privacy is not None
        self._method, self._server, self._privacy = method, server, privacy
        self._clip = float(server[CLIP]) if CLIP in server else privacy.clip
        expected = method.expects(server, 0)
        self._form = Message(**{n: torch.zeros(f.shape, dtype=f.dtype) for n, f in expected.items()})
        self._total = privacy.total(self._form, [], self._clip)
        self._means: dict[ClientId, Message] = {}
        self._within: float | None = None

    def add(self, seen: Mapping[ClientId, Message], replies: Inbox) -> None:
        plain = {c: Message(**{n: t for n, t in reply.items() if n != WITHIN}) for c, reply in replies.items()}
        bits = {client: float(reply.get(WITHIN, torch.zeros(()))) for client, reply in replies.items()}
        if self._privacy.sharing:  # the noise is in the mean already, which is everybody's reply
            self._means |= plain
            self._within = next(iter(bits.values()), self._within)
            return
        answered = [(plain[client], seen[client], bits[client]) for client in sorted(plain)]
        more = self._privacy.total(self._form, answered, self._clip)
        self._total = {name: part + more[name] for name, part in self._total.items()}

    def inbox(self) -> Inbox:
        privacy, server, within = self._privacy, self._server, self._within
        inbox: Inbox = self._means
        if not privacy.sharing:
            stages = server.spec.pipeline
            sent = stages.decode("down", stages.encode("down", self._method.send(server, 0), {}, {}), {})
            key = server.spec.seed if server.secrets is None else server.secrets.noise(server.round, self._total)
            rng = streams.generator(key, "client noise", server.round)
            mean, within = privacy.released(self._form, sent, self._total, self._clip, rng)
            inbox = dict.fromkeys(range(max(1, int(privacy.expected + 0.5))), mean)
        if privacy.quantile is not None and within is not None:
            server[CLIP] = torch.tensor(privacy.adapted(self._clip, within), dtype=torch.float64)
        return inbox
