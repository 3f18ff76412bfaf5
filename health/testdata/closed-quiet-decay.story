# The price of flapping falls by one step for each base period spent healthy,
# not with the first success.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin probe1                     | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s end probe1 failure               | ejected health=0.343 failures=2 ejections=2 until=3m0s unusable <ejected>
180s begin probe2                    | probing health=0.343 failures=2 ejections=2 until=3m0s unusable
180s end probe2 success              | healthy health=0.540 failures=0 ejections=2 <readmitted>
239s show                            | healthy health=0.540 failures=0 ejections=2
240s show                            | healthy health=0.540 failures=0 ejections=1
299s show                            | healthy health=0.540 failures=0 ejections=1
300s show                            | healthy health=0.540 failures=0 ejections=0
