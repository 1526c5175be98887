"""What is to be seen on real GPUs, in the order in which the first half hour on them is best used.

    python -m zerocourse.course.gpu_check                       all checks that this machine's GPUs allow
    python -m zerocourse.course.gpu_check one_rank offload      some of them
    python -m zerocourse.course.gpu_check --device cpu --tiny   a rehearsal, on a machine without a GPU

`table.py` lists the checks. Each one runs in a process of its own, because an error of CUDA ends everything in the process that
has it, and within a limit of time; what fails is written down, and the next one begins. All that was seen goes into one JSON file,
which `check_runner.py` describes. `tests/course/test_gpu.py` has the same checks as tests, and the bundle for Kaggle has them as a notebook.
"""
