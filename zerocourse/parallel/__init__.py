"""Beyond data: one model over several ranks, cut inside of its layers (`tensor`), between them (`pipeline`), or along its
tokens (`context`); all of it on one mesh (`mesh_comms`, `three_d`), and ZeRO for slow links between nodes (`plusplus`)."""
