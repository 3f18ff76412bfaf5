# Each failed probe doubles the wait: 60, 120, 240, then 300 seconds for ever.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin p1                         | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s end p1 failure                   | ejected health=0.343 failures=2 ejections=2 until=3m0s unusable <ejected>
180s begin p2                        | probing health=0.343 failures=2 ejections=2 until=3m0s unusable
180s end p2 failure                  | ejected health=0.240 failures=2 ejections=3 until=7m0s unusable <ejected>
420s begin p3                        | probing health=0.240 failures=2 ejections=3 until=7m0s unusable
420s end p3 failure                  | ejected health=0.168 failures=2 ejections=4 until=12m0s unusable <ejected>
720s begin p4                        | probing health=0.168 failures=2 ejections=4 until=12m0s unusable
720s end p4 failure                  | ejected health=0.118 failures=2 ejections=4 until=17m0s unusable <ejected>
