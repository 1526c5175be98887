"""What a stage works on: units of the model, their flat buffers, and the ranks that share them.

    groups         the ranks that cut a buffer among them, and those that hold the same slice
    buffer         parameters: all of them, this rank's slice, and the master weights
    gradients      the same buffer's gradients: the bucket, and this rank's slice of the sum
    held_tensors   what a buffer holds, in bytes
    unit           from a model to units, and from units to buffers
"""
