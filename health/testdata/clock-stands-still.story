# Everything at one instant: still ejected once, never due, never decayed.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
0s begin c                           | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
0s end c failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
0s show                              | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
0s readmit                           | healthy health=0.490 failures=0 ejections=1 <readmitted>
0s begin d                           | healthy health=0.490 failures=0 ejections=1
0s end d failure                     | healthy health=0.343 failures=1 ejections=1
0s begin e                           | healthy health=0.343 failures=1 ejections=1
0s end e failure                     | ejected health=0.240 failures=2 ejections=2 until=2m0s unusable <ejected>
