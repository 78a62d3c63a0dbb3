"""Figures of the worker engine's benchmarks: their meaning, and what must be reached. Knows no benchmark."""

from __future__ import annotations

from tests.benchmarks.figures import Sheet, Target

ENGINE = Sheet(
    command="python -m tests.benchmarks.engine",
    name="engine figures",
    title="Medians",
    meanings={
        "bisect_extra_runs": "runs beside the first until 1 bad request of 32 stands alone, in the worst of its places",
        "all_resident_rate": "200 models of 1 MB with memory for all, 90 % of the requests to 40 of them: per second",
        "hot_set_rate": "the same load with memory for 50",
        "cold_start_floor_s": "a model of 1 GiB from a store of 200 MB/s: the longer of bytes / bandwidth and imports",
        "cold_start_s": "from process start to the model being ready, its weights used as they lie on disk (a table)",
        "cold_start_packed_s": "the same with weights that ONNX Runtime repacks, on one core (matrix products)",
        "download_default_s": "an object from a real S3 server by boto3's download_file",
        "download_s": "the same object by ours",
        "goodput_ours": "simulated arrivals, the worst pattern: answers within the objective, as a share of requests",
        "goodput_fixed": "the same with a fixed window",
        "goodput_triton": "the same with Triton's rule",
        "goodput_bento": "the same with BentoML's rule",
        "goodput_bound": "the same, at most: an offline schedule that knows all arrivals",
        "chaos_accepted": "requests that the broker took while a worker of three was killed every 5 s",
        "chaos_lost": "of those, without an outcome in the end",
        "chaos_conflicting": "of those, with outcomes that differ",
        "chaos_duplicates": "outcomes that were told more than once",
        "chaos_catch_up_s": "from the last request to the last outcome",
        "rebalance_pause_s": "longest time between two batches of a partition that stays when a worker joins or leaves",
        "rebalance_pause_max_s": "the longest of all trials",
        "rebalance_join_pause_s": "the same, when a worker joins",
        "rebalance_leave_pause_s": "the same, when one leaves with SIGTERM",
        "rebalance_replace_pause_s": "the same, when one is killed and another started at once",
        "rebalance_kill_pause_s": "the same, when one is killed for good: what it left is caught up on first",
    },
    targets=(
        Target("bisect_extra_runs", "bisect_extra_runs", 11, at_least=False),
        Target("hot_set_of_all_resident", "hot_set_rate", 0.95, over="all_resident_rate"),
        Target("cold_start_above_s", "cold_start_s", 0.5, above="cold_start_floor_s", times=1.25, at_least=False),
        Target("download_gain", "download_default_s", 1.5, over="download_s"),
        Target("goodput_of_fixed", "goodput_ours", 1, over="goodput_fixed"),
        Target("goodput_of_triton", "goodput_ours", 1, over="goodput_triton"),
        Target("goodput_of_bento", "goodput_ours", 1, over="goodput_bento"),
        Target("goodput_of_bound", "goodput_ours", 0.90, over="goodput_bound"),
        Target("chaos_lost", "chaos_lost", 0, at_least=False),
        Target("chaos_conflicting", "chaos_conflicting", 0, at_least=False),
        Target("rebalance_pause_s", "rebalance_pause_s", 1, at_least=False),
    ),
)
