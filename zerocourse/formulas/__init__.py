"""How many bytes a rank holds and sends, and how many it holds at the peak, by formula. Nothing here imports torch.

    shares       one rank's share of a flat buffer                  units        GB and GiB, read and written
    states       model states at each stage, in each convention     volumes      what is sent in an optimizer step
    transformer  parameters of a GPT-2 and a Llama                  activations  what a layer keeps for its backward
    peak         the most bytes at any moment of a step             estimators   what other people's tools would say
    what_fits    on the device, the host and the disk               placements   which parts of a step lie on the host
    time/        seconds of a step, of a link, lost in failures     models/      Llamas: shapes, config.json, what a token costs
"""
