"""The bench as a picture: step time as a ratio to the baseline, and peak memory, one bar per mode. Computes nothing."""

from matplotlib.figure import Figure

from .figures import panels

OURS, PEER, BASE = "#4c72b0", "#c7c7c7", "#8c8c8c"


def bench_figure(summary: dict, baseline: str) -> Figure:
    """summary: the object that `zerocourse bench --json` prints. Our modes are those without a bucket size."""
    modes = summary["modes"]
    figure, (time, peak) = panels(12, 1.4 + 0.32 * len(modes), 1, 2, sharey=True)
    colors = [BASE if name == baseline else OURS if got["bucket"] is None else PEER for name, got in modes.items()]
    ratios = [got["ratios"].get(baseline) for got in modes.values()]
    lengths = [1.0 if name == baseline else ratio["median"] if ratio else 0.0
               for name, ratio in zip(modes, ratios, strict=True)]
    spread = [ratio["spread"] / 2 if ratio else 0.0 for ratio in ratios]
    time.barh(list(modes), lengths, xerr=spread, color=colors, ecolor="black")
    time.axvline(1, color="black", linewidth=0.8)
    noisy = " (too noisy to judge)" if summary["noisy"] else ""
    time.set(title=f"step time, as a ratio to {baseline}{noisy}", xlabel="ratio")
    heap = all(None not in got["heap_peak_bytes"] for got in modes.values())
    metered = "heap_peak_bytes" if heap else "peak_bytes"
    peak.barh(list(modes), [max(got[metered]) / 2**20 for got in modes.values()], color=colors)
    peak.set(title=f"peak of a step, {'heap' if heap else 'tensors'}, the rank that holds most", xlabel="MiB")
    time.invert_yaxis()
    for axes, values, form in ((time, lengths, "{:.2f}"), (peak, [bar.get_width() for bar in peak.patches], "{:.0f}")):
        for index, value in enumerate(values):
            axes.text(0, index, " " + form.format(value), va="center", fontsize=8)
    return figure
