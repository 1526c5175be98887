"""Scripts that import DeepSpeed, Hugging Face's Trainer above all, run unchanged on our stages.

    zerocourse run train.py --deepspeed ds_config.json                                    # two ranks
    torchrun --nproc-per-node 2 -m zerocourse.engine.bridge train.py --deepspeed ds_config.json

transformers and accelerate look for an installed distribution of the name `deepspeed`, import a dozen of its names, and
then drive the engine that `deepspeed.initialize` returns. `stand_in` answers for the distribution and the names, in this
process alone, and `deepspeed_engine` for what they ask of the engine beyond ours. What is not there says so.
"""
