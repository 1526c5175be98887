"""The check of 14.5: a forward and a backward on a device that has room for some of the layers only."""

from ....checks import Trial, When, Wrong, exercise


class SmallDevice:
    """A device with room for so many layers, and a link to the host, where all of them are. Notes what is done."""

    def __init__(self, room):
        self.room, self._there, self.fetched, self.done = room, set(), 0, []

    @property
    def there(self):
        """A copy: layers come and go over the link alone."""
        return set(self._there)

    def fetch(self, layer):
        if layer in self.there:
            raise Wrong(f"layer {layer} is fetched, and it is on the device already")
        if len(self.there) == self.room:
            raise Wrong(f"layer {layer} is fetched, and the device is full: it has the layers {sorted(self.there)}", "no room")
        self._there.add(layer)
        self.fetched += 1

    def drop(self, layer):
        self._needs(layer, "dropped")
        self._there.remove(layer)

    def forward(self, layer):
        self._needs(layer, "computed")
        self.done.append(f"forward {layer}")

    def backward(self, layer):
        self._needs(layer, "computed")
        self.done.append(f"backward {layer}")

    def _needs(self, layer, what):
        if layer not in self.there:
            raise Wrong(f"layer {layer} is {what}, and it is not on the device", "not there")


def one_pass(answer, layers, room):
    """What was computed, and what it took."""
    device = SmallDevice(room)
    answer(device, layers)
    return {"computed": device.done, "left": len(device.there), "fetched": device.fetched}


def goes_up(computed, right):
    """Do the backwards go through the layers in the order of the forwards?"""
    backwards = [int(each.split()[1]) for each in computed if each.startswith("backward")]
    return len(backwards) > 1 and backwards == sorted(backwards)


@exercise(
    "14.5", "Two memories and a link", minutes=25, difficulty=2,
    trials=[Trial([(6, 1), (6, 3), (5, 5), (4, 8), (7, 2)], one_pass)],
    mistakes={
        "all again": {"kept": lambda room, layers: 0},
        "the last alone": {"kept": lambda room, layers: 1},
        "one idle": {"kept": lambda room, layers: max(room - 1, 1)},
        "left over": {"leaves": True},
        "same order": ({"order": lambda layers: range(layers)}, When("computed", goes_up, suffices=True)),
        "no backward": {"order": lambda layers: ()},
    })
def one_step(device, layers, *, kept=lambda room, layers: room, order=lambda layers: reversed(range(layers)), leaves=False):
    """Keeps the last layers at the turn. kept: how many of them."""
    for layer in range(layers):
        device.fetch(layer)
        device.forward(layer)
        if layer < layers - kept(device.room, layers):
            device.drop(layer)
    for layer in order(layers):
        if layer not in device.there:
            if len(device.there) == device.room:
                device.drop(max(device.there))
            device.fetch(layer)
        device.backward(layer)
        if not leaves:
            device.drop(layer)
    for layer in () if leaves else list(device.there):
        device.drop(layer)
