"""How large each chunk of a prompt should be, learned from how long chunks take.

Pure control plane: no torch, no clock (`now` and durations are passed in), no I/O outside
`profile.py`. Everything runs in the head process; the scheduler asks, the engine feeds timings.

    latency_model   t(L, x): predict, and solve for x
    flow_shop       how long chunks take through a pipeline, exactly
    fit_atom        ATOM's fit and its gates          fit_robust   ours: robust, non-negative
    atom_calibrator ATOM's state machine              calibrator   ours: retries, refits on drift
    fit_stages      whether a fit can be planned with  background  where searches and fits run
    cuts            from a target to chunk sizes      plan_search  the best target for a prompt
    planners/       one file per policy: fixed, atom, makespan, sglang, linear
    sources         how many prefills compete         sweep        shapes tried to learn a model
    level_cuts      the best cuts for equal stages    neighbour_cuts  small changes of a plan
    startup         the sweep as the engine runs it
    controller      planner, calibration and report of one policy, behind one protocol
    report          counts by reason, the log line    profile      saved models; touches the disk
"""
