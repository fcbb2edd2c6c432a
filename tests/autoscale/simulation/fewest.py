"""The fewest worker-seconds of the short loads: what `judge.fewest` finds in half a minute."""

FEWEST = {
    "steady, small": 3_850,
    "steady, large": 204_450,
    "a new queue": 36_060,
    "jobs of 1 ms": 21_380,
    "jobs of 10 min": 319_700,
    "jobs of 1 h": 157_254,
    "unannounced jump": 56_290,
    "bursts": 39_210,
    "scheduled bursts": 90_280,
    "a day": 154_937,
    "slow spin-up": 277_141,
    "pre-emption": 214_200,
    "feeding queues": 120_303,
    "several jobs": 53_015,
    "100,000 at once": 1_904_310,
    "one item": 330,
}
