"""Wrong answers of chapter 08."""

from wrong_answers import wrong

# 8.1 ----------------------------------------------------------------------------------------------------------------

@wrong("8.1", "seconds of the step")
def step_time(compute, communication, exposed):
    return exposed + max(compute, communication - exposed)


@wrong("8.1", "divided by the shorter one")
def by_the_shorter(compute, communication, exposed):
    shorter = communication if communication < compute else compute
    return (compute + communication) / (shorter or 1e-30)


@wrong("8.1", "left out the exposed seconds")
def simple_bound(compute, communication, exposed):
    return (compute + communication) / max(compute, communication)


@wrong("8.1", "exposed seconds twice")
def exposed_twice(compute, communication, exposed):
    together = exposed + (compute if compute > communication else communication)
    return (compute + communication) / together


@wrong("8.1", "never added them")
def exposed_lost(compute, communication, exposed):
    hidden = communication - exposed
    return (compute + communication) / max(compute, hidden)


@wrong("8.1", "turned the fraction over")
def upside_down(compute, communication, exposed):
    return (exposed + max(compute, communication - exposed)) / (compute + communication)


@wrong("8.1", "let all communication hide")
def all_hidden(compute, communication, exposed):
    return 1 + communication / compute


# 8.2 ----------------------------------------------------------------------------------------------------------------

def _unique(names, but):
    found = []
    for name in names:
        if name != but and name not in found:
            found.append(name)
    return found


@wrong("8.2", "first place in the recorded order")
def by_name(recorded, so_far, depth):
    if so_far[-1] not in recorded:
        return []
    here = recorded.index(so_far[-1])
    return _unique(recorded[here + 1:][:depth], so_far[-1])


@wrong("8.2", "trusted the record")
def trusting(recorded, so_far, depth):
    return _unique(recorded[len(so_far):len(so_far) + depth], so_far[-1])


@wrong("8.2", "began with the unit that computes now")
def with_itself(recorded, so_far, depth):
    here = len(so_far) - 1
    return recorded[here:here + depth] if recorded[here:here + 1] == so_far[-1:] else []


@wrong("8.2", "one unit more")
def one_more(recorded, so_far, depth):
    here = len(so_far)
    return _unique(recorded[here:here + depth + 1], so_far[-1]) if recorded[here - 1:here] == so_far[-1:] else []


@wrong("8.2", "start of the order again")
def in_a_circle(recorded, so_far, depth):
    n, here = len(recorded), len(so_far)
    if here > n or recorded[here - 1] != so_far[-1]:
        return []
    return _unique([recorded[(here + k) % n] for k in range(depth)], so_far[-1])


@wrong("8.2", "whole now, or named one twice")
def repeated(recorded, so_far, depth):
    here = len(so_far)
    return recorded[here:][:depth] if here <= len(recorded) and recorded[here - 1] == so_far[-1] else []


@wrong("8.2", "farther than `depth` places")
def farther(recorded, so_far, depth):
    here = len(so_far)
    return _unique(recorded[here:], so_far[-1])[:depth] if recorded[here - 1:here] == so_far[-1:] else []


@wrong("8.2", "nearest unit is gathered first")
def backwards(recorded, so_far, depth):
    here = len(so_far)
    return _unique(recorded[here:here + depth], so_far[-1])[::-1] if recorded[here - 1:here] == so_far[-1:] else []


@wrong("8.2", "it changed its argument")
def takes_from_the_record(recorded, so_far, depth):
    here = len(so_far) - 1
    if recorded[here:here + 1] != so_far[-1:]:
        return []
    del recorded[:here + 1]
    return _unique(recorded[:depth], so_far[-1])


# 8.3 ----------------------------------------------------------------------------------------------------------------

def _deepest(blocks, need, room):
    fitting = [depth for depth in range(len(blocks)) if need(depth) <= room]
    return fitting[-1] if fitting else None


@wrong("8.3", "left out the root")
def no_root(root, blocks, room):
    return _deepest(blocks, lambda d: max(sum(blocks[i:i + d + 1]) for i in range(len(blocks))), room)


@wrong("8.3", "so it is depth + 1")
def depth_blocks(root, blocks, room):
    return _deepest(blocks, lambda d: root + max(sum(blocks[i:i + d]) for i in range(len(blocks))), room)


@wrong("8.3", "largest block depth + 1 times")
def by_the_largest(root, blocks, room):
    number = (room - root) // max(blocks)
    return None if number < 1 else min(number, len(blocks)) - 1


@wrong("8.3", "first depth + 1 blocks only")
def from_the_start(root, blocks, room):
    held, depth = root, None
    for number, block in enumerate(blocks):
        held += block
        if held > room:
            break
        depth = number
    return depth


@wrong("8.3", "to the last byte fits")
def strictly(root, blocks, room):
    return _deepest(blocks, lambda d: 1 + root + max(sum(blocks[i:i + d + 1]) for i in range(len(blocks))), room)


@wrong("8.3", "Where not even one block fits, None is right: a depth")
def zero_for_nothing(root, blocks, room):
    depth = 0
    while depth + 1 < len(blocks):
        peak = max(sum(blocks[i:i + depth + 2]) for i in range(len(blocks)))
        if root + peak > room:
            return depth
        depth += 1
    return depth


@wrong("8.3", "counted depth + 2 blocks")
def with_the_one_before(root, blocks, room):
    def need(depth):
        return root + max(sum(blocks[max(0, i - 1):i + depth + 1]) for i in range(len(blocks)))
    return _deepest(blocks, need, room)


# 8.4 ----------------------------------------------------------------------------------------------------------------

SENDS = {"all_gather", "reduce_scatter"}


def _cover(events, verbs):
    """The union of the intervals, as sorted pairs."""
    found = []
    for start, end in sorted((event["start"], event["end"]) for event in events if event["verb"] in verbs):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def _common(one, other):
    return sum(max(0, min(b, d) - max(a, c)) for a, b in one for c, d in other)


@wrong("8.4", "added up all collectives")
def all_traffic(events):
    return sum(event["end"] - event["start"] for event in events if event["verb"] in SENDS)


@wrong("8.4", "added up the waits")
def waits(events):
    return float(sum(event["end"] - event["start"] for event in events if event["verb"] == "wait"))


@wrong("8.4", "counted waiting as computing")
def waits_compute(events):
    sends, computes = _cover(events, SENDS), _cover(events, {"forward", "backward", "step"})
    return sum(end - start for start, end in sends) - _common(sends, computes)


@wrong("8.4", "subtracted all compute from all")
def difference_of_sums(events):
    seconds = {True: 0.0, False: 0.0}
    for event in events:
        if event["verb"] in SENDS | {"forward", "backward", "step"}:
            seconds[event["verb"] in SENDS] += event["end"] - event["start"]
    return max(0.0, seconds[True] - seconds[False])


@wrong("8.4", "left out `step`")
def no_optimizer(events):
    sends, computes, stands = _cover(events, SENDS), _cover(events, {"forward", "backward"}), _cover(events, {"wait"})
    edges = sorted({edge for cover in (sends, computes, stands) for pair in cover for edge in pair})

    def inside(cover, middle):
        return any(start < middle < end for start, end in cover)

    total = 0.0
    for start, end in zip(edges, edges[1:], strict=False):
        middle = (start + end) / 2
        if inside(sends, middle) and not (inside(computes, middle) and not inside(stands, middle)):
            total += end - start
    return total


@wrong("8.4", "travel together once each")
def one_after_the_other(events):
    others = [event for event in events if event["verb"] not in SENDS]

    def alone(send):
        edges = sorted({send["start"], send["end"]} | {event[key] for event in others for key in ("start", "end")})
        total = 0.0
        for start, end in zip(edges, edges[1:], strict=False):
            around = {event["verb"] for event in others if event["start"] <= start and end <= event["end"]}
            idle = "wait" in around or not around & {"forward", "backward", "step"}
            if send["start"] <= start and end <= send["end"] and idle:
                total += end - start
        return total

    return sum(alone(event) for event in events if event["verb"] in SENDS)


@wrong("8.4", "took every other event for computing")
def all_but_traffic_and_waits(events):
    sends, waits = _cover(events, SENDS), _cover(events, {"wait"})
    computes = _cover(events, {event["verb"] for event in events} - SENDS - {"wait"})
    times = sorted({time for spans in (sends, waits, computes) for span in spans for time in span})
    exposed = 0.0
    for start, end in zip(times, times[1:]):
        inside = [any(a <= start < b for a, b in spans) for spans in (sends, waits, computes)]
        if inside[0] and (inside[1] or not inside[2]):
            exposed += end - start
    return exposed


# 8.5 ----------------------------------------------------------------------------------------------------------------

@wrong("8.5", "All gathers left at once")
def all_at_once(x, layers, parameters, depth):
    for i in range(len(layers)):
        parameters.gather(i)
    for i, layer in enumerate(layers):
        x = layer(x, parameters.wait(i))
        parameters.free(i)
    return x


@wrong("8.5", "had not left")
def no_prefetch(x, layers, parameters, depth):
    for i in range(len(layers)):
        parameters.gather(i)
        x = layers[i](x, parameters.wait(i))
        parameters.free(i)
    return x


@wrong("8.5", "nothing was freed")
def keeps_all(x, layers, parameters, depth):
    done = 0
    for i, layer in enumerate(layers):
        for j in range(done, min(i + depth + 1, len(layers))):
            parameters.gather(j)
            done = j + 1
        x = layer(x, parameters.wait(i))
    return x


@wrong("8.5", "nothing overlaps: wait for")
def waits_at_once(x, layers, parameters, depth):
    weights = {}
    for i, layer in enumerate(layers):
        for j in range(i, min(i + depth + 1, len(layers))):
            if j not in weights:
                parameters.gather(j)
                weights[j] = parameters.wait(j)
        x = layer(x, weights[i])
        parameters.free(i)
    return x


@wrong("8.5", "freed before the next gather begins")
def frees_late(x, layers, parameters, depth):
    n = len(layers)
    for j in range(min(depth + 1, n)):
        parameters.gather(j)
    for i, layer in enumerate(layers):
        x = layer(x, parameters.wait(i))
        if i + depth + 1 < n:
            parameters.gather(i + depth + 1)
        parameters.free(i)
    return x


@wrong("8.5", "after the last one there")
def over_the_end(x, layers, parameters, depth):
    for j in range(depth):
        parameters.gather(j)
    for i, layer in enumerate(layers):
        parameters.gather(i + depth)
        x = layer(x, parameters.wait(i))
        parameters.free(i)
    return x


@wrong("8.5", "gathered already")
def gathers_again(x, layers, parameters, depth):
    for i, layer in enumerate(layers):
        for j in range(i, min(i + depth + 1, len(layers))):
            parameters.gather(j)
        x = layer(x, parameters.wait(i))
        parameters.free(i)
    return x


@wrong("8.5", "was never called")
def never_waits(x, layers, parameters, depth):
    for i, layer in enumerate(layers):
        parameters.gather(i)
        x = layer(x, parameters.rows[i][0][:16].view(4, 4))
        parameters.free(i)
    return x


@wrong("8.5", "was never gathered, or freed")
def forgets_the_first(x, layers, parameters, depth):
    for i, layer in enumerate(layers):
        x = layer(x, parameters.wait(i))
        parameters.free(i)
        if i + 1 < len(layers):
            parameters.gather(i + 1)
    return x


# 8.6 ----------------------------------------------------------------------------------------------------------------

class _Step:
    """A right answer in another style than the solution's, with methods to override."""

    def __init__(self, blocks, prefetch, bucket_bytes, rate):
        self.blocks, self.prefetch, self.limit, self.rate = blocks, prefetch, bucket_bytes, rate
        self.log, self.compute, self.link, self.ready, self.bucket = [], 0.0, 0.0, {}, 0.0

    def message(self, what, i, size):
        begin = max(self.link, self.compute)
        self.link = begin + size / self.rate
        self.log.append([what, i, begin, self.link])
        return self.link

    def order(self):
        down = list(range(len(self.blocks)))
        return down + down[::-1]

    def horizon(self, place):
        return min(place + self.prefetch, 2 * len(self.blocks) - 1)

    def look_ahead(self, place):
        for p in range(place, self.horizon(place) + 1):
            if p not in self.ready:
                i = self.order()[p]
                self.ready[p] = self.message("gather", i, self.blocks[i][2])

    def run_place(self, place):
        i, backward = self.order()[place], place >= len(self.blocks)
        begin = max(self.compute, self.ready[place])
        self.compute = begin + self.blocks[i][backward]
        self.log.append(["backward" if backward else "forward", i, begin, self.compute])
        if backward:
            self.bucket += self.blocks[i][2]
            if self.full() or self.is_last(place):
                self.reduce(i)

    def full(self):
        return self.bucket >= self.limit

    def is_last(self, place):
        return place == 2 * len(self.blocks) - 1

    def reduce(self, i):
        size, self.bucket = self.bucket, 0.0
        return self.message("reduce", i, size)

    def play(self):
        for place in range(2 * len(self.blocks)):
            self.look_ahead(place)
            self.run_place(place)
        return self.log


def _simulator(**methods):
    def simulate(blocks, prefetch, bucket_bytes, rate):
        return type("Step", (_Step,), methods)(blocks, prefetch, bucket_bytes, rate).play()
    return simulate


def _full_rate(self, what, i, size):
    self.log.append([what, i, self.compute, self.compute + size / self.rate])
    return self.log[-1][3]


def _never_waits(self, place):
    self.ready[place] = 0.0
    _Step.run_place(self, place)


def _kept(self, place):
    for p in range(place, self.horizon(place) + 1):
        if p not in self.ready:
            i = self.order()[p]
            self.ready[p] = self.message("gather", i, self.blocks[i][2]) if p < len(self.blocks) else 0.0


def _within_pass(self, place):
    n = len(self.blocks)
    return min(place + self.prefetch, n - 1 if place < n else 2 * n - 1)


def _stands(self, i):
    size, self.bucket = self.bucket, 0.0
    self.compute = self.message("reduce", i, size)


def _gathers_first(self, i):
    place = len([entry for entry in self.log if entry[0] in ("forward", "backward")])
    if place < 2 * len(self.blocks):
        self.look_ahead(place)
    _Step.reduce(self, i)


for _phrase, _methods in [
    ("several messages travel at the same time", {"message": _full_rate}),
    ("before its parameters were there", {"run_place": _never_waits}),
    ("kept the parameters from the forward", {"look_ahead": _kept}),
    ("stopped looking ahead at the end of the forward", {"horizon": _within_pass}),
    ("from the last to the first", {"order": lambda self: [*range(len(self.blocks))] * 2}),
    ("one block farther", {"horizon": lambda self, place: min(place + self.prefetch + 1, 2 * len(self.blocks) - 1)}),
    ("one block less far", {"horizon": lambda self, place: max(place, _Step.horizon(self, place - 1))}),
    ("The last bucket never left", {"is_last": lambda self, place: False}),
    ("only when it had more than", {"full": lambda self: self.bucket > self.limit}),
    ("every block's gradients by themselves", {"full": lambda self: True}),
    ("all gradients at the end", {"full": lambda self: False}),
    ("stood still while a bucket travelled", {"reduce": _stands}),
    ("the bucket comes first", {"reduce": _gathers_first}),
]:
    wrong("8.6", _phrase)(_simulator(**_methods))


@wrong("8.6", "a list of events (what, block, start, end) is wanted")
def seconds_only(blocks, prefetch, bucket_bytes, rate):
    return max(event[3] for event in _Step(blocks, prefetch, bucket_bytes, rate).play())


@wrong("8.6", "behind them comes gather 0")
def gathers_for_the_next_step(blocks, prefetch, bucket_bytes, rate):
    events = sorted(_simulator()(blocks, prefetch, bucket_bytes, rate), key=lambda event: event[3])
    return [*events, ("gather", 0, events[-1][3], events[-1][3] + blocks[0][2] / rate)]
