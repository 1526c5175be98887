"""An agent and its ranks over the attempts of a run: who starts whom, who dies, who is ended, drawn from what ranks have told."""

from collections.abc import Mapping, Sequence

from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

WIDE, HIGH, AGENT_Y, RANK_Y = 150.0, 58.0, 24.0, 140.0  # units


def agent_film(data: Sequence[Mapping], killed: int, saved_every: int) -> Film:
    """data: attempts as `elastic_trial.as_data` makes them.   killed: the rank that died in all but the last of them."""
    frames = []
    for number, attempt in enumerate(data, 1):
        pids = dict(sorted({(row["rank"], row["pid"]) for row in attempt["rows"]}))
        first, last = (edge(row["step"] for row in attempt["rows"]) for edge in (min, max))
        agent = attempt["rows"][0]["agent"]
        begins = f"which begin with step {first}" + (f", after the checkpoint of step {first - 1}" if first > 1 else "")
        frames.append(Frame(agent_frame(agent, pids, "runs"), f"The agent, process {agent}, starts {len(pids)} ranks, {begins}. They save "
                            f"every {saved_every} steps.", f"Attempt {number}"))
        if attempt["ended"]:
            frames += [Frame(agent_frame(agent, pids, "runs", {killed: "dead"}), f"In step {last} {attempt['ended']}. The "
                             "agent sees it, because it is the parent of the process.", "A rank dies"),
                       Frame(agent_frame(agent, pids, "ended", {killed: "dead"}), "The agent ends all other ranks, although nothing "
                             "is wrong with them.", "The others are ended")]
        else:
            frames.append(Frame(agent_frame(agent, pids, "done"), f"Step {last} is the last one. The ranks end by themselves, and then the "
                                "agent does.", "The run is complete"))
    return Film("An agent and its ranks", frames, f"{len(data)} attempts of one agent. " + " ".join(each.words for each in frames), 2.5)


def agent_frame(agent: int, pids: Mapping[int, int], state: str, others: Mapping[int, str] = {}) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, RANK_Y + HIGH + 30)
    middle = svg.WIDTH / 2
    drawing.rect(middle - WIDE / 2, AGENT_Y, WIDE, HIGH, fill="white", label=f"agent, {agent}", data={"agent": agent})
    for number, (rank, pid) in enumerate(pids.items()):
        x, is_now = (number + 0.5) * svg.WIDTH / len(pids), others.get(rank, state)
        drawing.line(middle, AGENT_Y + HIGH, x, RANK_Y, color=FAINT, dashed=is_now != "runs")
        drawing.rect(x - WIDE / 2, RANK_Y, WIDE, HIGH, "parameters" if is_now == "runs" else "padding", f"rank {rank}, {pid}",
                     dashed=is_now != "runs", data={"rank": rank, "state": is_now})
        drawing.text(x, RANK_Y + HIGH + 20, {"runs": "trains", "dead": "dead (SIGKILL)", "ended": "ended by the agent", "done": "done"}[is_now],
                     size=13, anchor="middle")
    return drawing
