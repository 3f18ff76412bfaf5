# When the wait is over, one attempt gets the probe token; while it is under
# way nobody else is let in.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
59.999s show                         | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
60s show                             | probing health=0.490 failures=2 ejections=1 until=1m0s
60s begin probe                      | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s begin other                      | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s end other neutral                | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
