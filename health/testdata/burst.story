# Eight dials at once, all refused: one ejection, at the first price.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s begin b                           | healthy health=1.000 failures=0 ejections=0
0s begin c                           | healthy health=1.000 failures=0 ejections=0
0s begin d                           | healthy health=1.000 failures=0 ejections=0
0s begin e                           | healthy health=1.000 failures=0 ejections=0
0s begin f                           | healthy health=1.000 failures=0 ejections=0
0s begin g                           | healthy health=1.000 failures=0 ejections=0
0s begin h                           | healthy health=1.000 failures=0 ejections=0
0.1s end a failure                   | healthy health=0.700 failures=1 ejections=0
0.1s end b failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable <ejected>
0.1s end c failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
0.1s end d failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
0.1s end e failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
0.1s end f failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
0.1s end g failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
0.1s end h failure                   | ejected health=0.490 failures=2 ejections=1 until=1m0.1s unusable
60.1s begin probe                    | probing health=0.490 failures=2 ejections=1 until=1m0.1s unusable
60.2s end probe success              | healthy health=0.643 failures=0 ejections=1 <readmitted>
