"""From a user's parallel text to a recipe that fits it: what `transformer-jax init` does.

`write_recipe` passes these modules, in this order:

    survey        Corpus                  -> CorpusSurvey: counts, lengths, a sample
    device        a name                  -> Device: cores or accelerators, memory
    set_aside     digests of the sources  -> files of train, validation and test
    sizing        pairs, tokens, device   -> Sizes: a row of the table, steps, vocabulary
    settings      all of the above        -> ChosenSettings: Config, reasons, lengths in tokens
    run_estimate  Config, sample          -> RunEstimate: time and memory, measured

`reasons` has the comments of the recipe, which `recipe` writes as Python.
"""
