"""Seconds of an optimizer step by formula: what a rank computes, and what each axis of the mesh makes it wait for.

What the formulas assume is said in `by_formula`.
"""

from dataclasses import dataclass
from functools import cached_property

from ..formulas.models.mixture_shape import TRIPS
from ..formulas.shares import share_of
from ..formulas.time.step_time import ADAM_TRAFFIC, PUBLISHING_TRAFFIC, StepTime, state_traffic, step_time
from ..formulas.transformer import block_flops
from ..formulas.volumes import sent_bytes
from ..formulas.what_fits import DEVICE, Needs
from .candidate import AxisTraffic, Candidate
from .mesh_parts import RankPart, bubble_seconds, links
from .question import Question


@dataclass(frozen=True)
class StepSeconds:
    """Of one rank.   part: what it has of the model.   need: what that needs, and moves where it is offloaded."""

    question: Question
    candidate: Candidate
    part: RankPart
    need: Needs

    @property
    def compute(self) -> float:
        return self.on_its_own.compute - self.tensor.exposed

    @property
    def waits(self) -> float:
        return sum(each.exposed for each in (self.data, self.tensor, self.pipeline, self.expert)) + self.bubble + self.offloaded

    @property
    def traffic(self) -> tuple[AxisTraffic, ...]:
        """Of the axes that send anything; data always."""
        return tuple(each for each in (self.tensor, self.pipeline, self.expert, self.data) if each.axis == "data" or each.nbytes)

    # -- what a rank computes -----------------------------------------------------------------------------------------

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.candidate.micro_batch * self.question.seq

    @cached_property
    def token(self):
        return self.question.model.token(self.element, self.candidate.recompute, self.candidate.experts_over)

    @property
    def element(self) -> int:
        """Bytes of a parameter."""
        return self.candidate.convention.parameter

    def moving(self, nbytes: float) -> float:
        """Seconds in which the device reads and writes so many bytes."""
        return self.question.cluster.machine.seconds(0, nbytes)

    def layer(self, passes: int, used: int | None = None) -> float:
        """passes: 1 for a forward, 2 for a backward.   used: parameters with which a token is multiplied, by default all."""
        model, t = self.question.model, self.candidate.tensor
        used = model.used if used is None else used
        flops = block_flops(used, model.width, self.question.seq, self.candidate.micro_batch, passes)
        read = self.element * (used / t if not self.part.experts else self.part.block + self.part.experts)
        moved = self.token.moved_layer / (4 if self.candidate.recompute else 3)
        return self.question.cluster.machine.seconds(flops / t, passes * read) + self.moving(self.tokens * moved * passes / t)

    @cached_property
    def forward(self) -> float:
        """Of one layer, in one micro-batch. A pass gathers a layer's input and scatters its output twice, around attention and around
        the feed-forward part."""
        return self.layer(1) + 4 * self.talk

    @cached_property
    def backward(self) -> float:
        model, seconds = self.question.model, self.layer(2) + (4 + self.again) * self.talk
        if self.candidate.recompute:  # all but the last matrix, whose output the backward does not need
            seconds += self.layer(1, model.used - max(model.k, 1) * model.inner * model.width)
        if self.part.experts:  # gradients of single experts become one of all, and then go into the buffer
            seconds += self.moving(4 * self.candidate.convention.gradient * self.part.experts)
        return seconds

    @cached_property
    def head(self) -> float:
        model, t = self.question.model, self.candidate.tensor
        return (self.question.cluster.machine.seconds(6 * self.tokens * model.vocabulary * model.width / t, 0)
                + self.moving(self.tokens * self.token.moved_loss / t))

    @cached_property
    def owned(self) -> int:
        """Parameters that the rank updates."""
        experts = self.part.layers * self.part.experts
        return share_of(self.part.dense, self.candidate.data) + (share_of(experts, self.candidate.same_experts) if experts else 0)

    @cached_property
    def on_its_own(self) -> StepTime:
        """As if there were the data axis alone: what tensor parallelism sends is part of what is computed."""
        way, part, micro_batches = self.candidate, self.part, self.candidate.accumulation
        rest = micro_batches * (part.last * self.head + self.at_the_ends * self.talk)
        rest += self.moving(state_traffic(way.stage, self.element, part.params, self.owned, micro_batches))
        if way.optimizer != DEVICE:
            rest -= self.moving(ADAM_TRAFFIC * (self.owned if way.stage else part.params))
        of_unit = (self.collective(part.block) + self.collective(part.experts, way.same_experts, way.experts_over) if way.experts_over > 1
                   else self.collective(part.block + part.experts))  # experts that ranks have apart lie in a buffer of their own
        return step_time(way.stage, micro_batches, part.layers, self.forward, self.backward, rest,
                         self.moving(PUBLISHING_TRAFFIC[self.element] * self.owned), of_unit,
                         self.collective(part.before) + self.collective(part.after))

    # -- what it waits for --------------------------------------------------------------------------------------------

    def collective(self, numel: int, among: int | None = None, stride: int | None = None) -> float:
        """Seconds of a gather, or a reduction, of so many elements: among the ranks of the data axis, by default."""
        among = self.candidate.data if among is None else among
        if among == 1 or not numel:
            return 0.0
        network = self.question.cluster.network.every(stride or self.candidate.tensor)
        return network.seconds((among - 1) * share_of(numel, among) * self.element, among)

    @cached_property
    def links(self) -> dict[str, str]:
        return links(self.candidate, self.question.cluster.network.per_node)

    @cached_property
    def data(self) -> AxisTraffic:
        way, part = self.candidate, self.part
        wire = sent_bytes(part.dense, way.stage, way.data, way.accumulation, convention=way.convention)
        if part.experts:
            wire += sent_bytes(part.layers * part.experts, way.stage, way.same_experts, way.accumulation, convention=way.convention)
        return AxisTraffic("data", self.links["data"], wire, self.on_its_own.exposed)

    @cached_property
    def slice_bytes(self) -> int:
        """Of a layer's input that one rank of the tensor axis has."""
        return self.tokens * self.question.model.width * self.element // self.candidate.tensor

    @cached_property
    def talk(self) -> float:
        """Seconds of one gather, or scatter, over the tensor axis."""
        t = self.candidate.tensor
        return self.question.cluster.network.every(1).seconds((t - 1) * self.slice_bytes, t) if t > 1 else 0.0

    @property
    def again(self) -> int:
        """Talks of a layer that is recomputed, which ends when all that the backward needs is there: before a Llama's last scatter."""
        return self.candidate.recompute * (3 if self.question.model.family == "llama" else 4)

    @property
    def at_the_ends(self) -> int:
        """Talks outside of the layers. The embedding's sum counts as two, and its cut and the head's input send in the backward, too."""
        return 3 * self.part.first + 2 * self.part.last

    @cached_property
    def tensor(self) -> AxisTraffic:
        talks = self.candidate.accumulation * (self.part.layers * (8 + self.again) + self.at_the_ends)
        return AxisTraffic("tensor", self.links["tensor"], talks * (self.candidate.tensor - 1) * self.slice_bytes, talks * self.talk)

    @cached_property
    def expert(self) -> AxisTraffic:
        """Tokens that travel to their experts and back."""
        way, model, over = self.candidate, self.question.model, self.candidate.experts_over
        trips = way.accumulation * self.part.layers * (TRIPS + way.recompute * TRIPS // 2)
        nbytes = model.k * self.tokens * model.width * self.element * (over - 1) // over
        seconds = trips * self.question.cluster.network.to_each_seconds(nbytes, over) if over > 1 else 0.0
        return AxisTraffic("expert", self.links["expert"], trips * nbytes, seconds)

    @cached_property
    def pipeline(self) -> AxisTraffic:
        """Hand-overs hide behind other micro-batches, except while the pipeline fills and drains."""
        way, model, p = self.candidate, self.question.model, self.candidate.pipeline
        if p == 1:
            return AxisTraffic("pipeline", self.links["pipeline"], 0, 0.0)
        along = self.question.cluster.network.every(way.tensor * way.data)
        latency = along.latency if along.nodes(p) == 1 else along.latency_between
        at_an_end = model.tied and (self.part.first or self.part.last)
        tied = self.element * share_of(model.vocabulary * model.width // way.tensor, way.data) if at_an_end else 0
        return AxisTraffic("pipeline", self.links["pipeline"],
                           (2 * way.chunks - (p == 2)) * way.accumulation * self.slice_bytes + tied,
                           2 * (p - 1) * (self.slice_bytes / along.rate(p) + latency))

    @cached_property
    def bubble(self) -> float:
        """Seconds in which the rank waits for stages that take longer, and for the pipeline to fill and to drain."""
        p = self.candidate.pipeline
        if p == 1:
            return 0.0
        even, more = divmod(self.question.model.layers, p)
        slots = [(even + (rank < more)) * (self.forward + self.backward) + (rank == p - 1) * self.head for rank in range(p)]
        mine = slots[0] if self.part.first else slots[-1]
        return self.candidate.accumulation * (max(slots) - mine) + bubble_seconds(self.candidate, slots)

    @property
    def offloaded(self) -> float:
        """What is offloaded moves after the backward, and the host updates it: nothing hides."""
        if self.candidate.optimizer == DEVICE:
            return 0.0
        rates = self.question.rates
        on_disk = self.need.io_bytes / rates.disk if self.need.io_bytes else 0
        return self.need.link_bytes / rates.link + ADAM_TRAFFIC * self.owned / rates.host + on_disk
